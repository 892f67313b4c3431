package rlmm.daemon.kafka;

import java.nio.ByteBuffer;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.common.utils.AppInfoParser;
import org.msgpack.core.MessageTypeException;
import org.msgpack.value.ArrayValue;
import org.msgpack.value.Value;

/** {@code hello}: who this side is, what the daemon says of itself, and what to do when the two do not fit. */
final class Greeting {
    static final int ID = 1;
    static final String METADATA = "metadata";
    static final String STORAGE = "storage";

    private static final String ADD_USER = "Add the broker's user to [socket.rights.write] in the daemon's configuration,"
        + " or its group (`rlmm`) to the broker's unit";

    private Greeting() { }

    /** The daemon's word on this connection. */
    record Welcome(String version, String clusterId, Set<String> rights) { }

    static ByteBuffer hello(PluginConfig config, String role, String part) {
        return Wire.request(ID, "hello", packer -> {
            packer.packArrayHeader(8).packInt(Wire.PROTOCOL).packString("kafka-plugin, Kafka " + AppInfoParser.getVersion());
            packer.packString(role).packString(part);
            Wire.packOrNil(packer, config.clusterId());
            packer.packInt(config.brokerId()).packLong(config.brokerIncarnation());
            Wire.packOrNil(packer, config.bootstrap());
        });
    }

    /**
     * Reads the answer to {@link #hello}.
     *
     * @throws DaemonException the daemon refused, or it is none
     */
    static Welcome welcome(Wire.Answer answer) throws DaemonException {
        if (answer.error() != null) {
            throw answer.error();
        }
        try {
            ArrayValue result = answer.result().asArrayValue();
            Set<String> rights = new TreeSet<>();
            for (Value right : result.get(4).asArrayValue()) {
                rights.add(right.toString());
            }
            Value cluster = result.get(2);
            return new Welcome(result.get(1).toString(), cluster.isNilValue() ? null : cluster.toString(), rights);
        } catch (MessageTypeException | IndexOutOfBoundsException broken) {
            throw DaemonException.garbled("hello was answered with something else");
        }
    }

    /** What a person can do about a refusal, behind what the daemon said. */
    static String advice(PluginConfig config, DaemonException refusal) {
        String what = refusal.getMessage();
        if (refusal.code() == DaemonException.INVALID_ARGUMENT) {
            return what + ". This is broker " + config.brokerId() + " of cluster " + config.clusterId()
                + ": point socket.path (now " + config.socketPath() + ") at this broker's own daemon, or set"
                + " daemon.broker_id and daemon.cluster_id in that daemon's configuration to this broker's";
        }
        return refusal.code() == DaemonException.UNAUTHORIZED ? what + ". " + ADD_USER : what;
    }

    static String adviceOnRights(Welcome welcome) {
        return "The daemon gives this broker only " + welcome.rights() + ". " + ADD_USER;
    }
}
