package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.common.utils.AppInfoParser;
import org.msgpack.core.MessagePackException;
import org.msgpack.core.MessagePacker;
import org.msgpack.core.MessageUnpacker;

/** {@code hello}: who this side is, what the daemon says of itself, and what to do when the two do not fit. */
final class Greeting {
    static final int ID = 1;
    static final String METADATA = "metadata";
    static final String STORAGE = "storage";

    private static final String ADD_USER = "Add the broker's user to [socket.rights.write] in the daemon's configuration,"
        + " or its group (`rlmm`) to the broker's unit";

    /** As the daemon's that it was built with; `rlmm doctor` holds the two side by side. */
    static final String VERSION = "0.1.0";

    private Greeting() { }

    /** The daemon's word on this connection; an earlier daemon does not say of what kind its event log is: null. */
    record Welcome(String version, String clusterId, Set<String> rights, String eventLog) { }

    private record Hello(PluginConfig config, String role, String part) implements Wire.Params {
        @Override
        public void pack(MessagePacker packer) throws IOException {
            packer.packArrayHeader(8).packInt(Wire.PROTOCOL).packString("kafka-plugin " + VERSION + ", Kafka " + AppInfoParser.getVersion());
            packer.packString(role).packString(part);
            Wire.packOrNil(packer, config.clusterId());
            packer.packInt(config.brokerId()).packLong(config.brokerIncarnation());
            Wire.packOrNil(packer, config.bootstrap());
        }
    }

    static ByteBuffer hello(PluginConfig config, String role, String part) {
        return Wire.request(ID, "hello", new Hello(config, role, part));
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
        try (MessageUnpacker result = answer.unpacker()) {
            int size = result.unpackArrayHeader();
            result.skipValue(); // the protocol, which it would have refused
            String version = result.unpackString();
            String cluster = Wire.unpackOrNil(result);
            result.skipValue(); // the broker id, which it would have refused
            Set<String> rights = new TreeSet<>();
            for (int left = result.unpackArrayHeader(); left > 0; left--) {
                rights.add(result.unpackString());
            }
            return new Welcome(version, cluster, rights, size > 5 ? Wire.unpackOrNil(result) : null);
        } catch (IOException | MessagePackException broken) {
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
