package rlmm.daemon.kafka;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Range;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.common.config.ConfigException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What the broker hands to {@code configure}: our keys without their prefix, and what it adds by itself.
 *
 * <p>{@code broker.id} comes as an Integer, prefixed keys come as strings, and a test's map may hold a Short; all are
 * accepted. Unknown keys are ignored, because the same prefix may still hold those of another manager; whoever
 * configures is told which.
 */
final class PluginConfig {
    private static final Logger LOG = LoggerFactory.getLogger(PluginConfig.class);

    static final String SOCKET_PATH = "socket.path";
    static final String DAEMON_USER = "daemon.user";
    static final String METADATA_TIMEOUT_MS = "metadata.timeout.ms";
    static final String READY_TIMEOUT_MS = "ready.timeout.ms";
    static final String HOLD_MS = "hold.ms";
    static final String LOOKUP_REUSE_MS = "lookup.reuse.ms";
    static final String COPY_TIMEOUT_MS = "copy.timeout.ms";
    static final String FETCH_TIMEOUT_MS = "fetch.timeout.ms";
    static final String INDEX_TIMEOUT_MS = "index.timeout.ms";
    static final String DELETE_TIMEOUT_MS = "delete.timeout.ms";
    static final String DELETE_FAIL_FAST_MS = "delete.fail.fast.ms";
    static final String DELETE_HOLD_MS = "delete.hold.ms";
    static final String FETCH_CONNECTIONS_MAX = "fetch.connections.max";
    static final String FETCH_OPEN_FILES = "fetch.open.files";
    static final String RECONNECT_MS = "reconnect.ms";
    static final String RECONNECT_MAX_MS = "reconnect.max.ms";
    static final String IN_FLIGHT_MAX = "requests.in.flight.max";
    static final String WAITING_MAX = "requests.waiting.max";
    static final String SINGLE_BROKER_CHECK = "single.broker.check";
    /** The prefix under which the broker names itself, and under which TBRLMM takes its clients' settings. */
    static final String CLIENT_PREFIX = "remote.log.metadata.common.client.";

    /** Of the settings of Kafka's own metadata manager, which may stay beside ours. */
    private static final String KAFKAS_PREFIX = "remote.log.metadata.";

    static final String BROKER_ID = "broker.id";
    static final String CLUSTER_ID = "cluster.id";
    private static final Set<String> BROKERS = Set.of(BROKER_ID, CLUSTER_ID, "log.dir");
    private static final String BROKER_ID_PLACE = "%{broker.id}";
    /** sun_path of sockaddr_un holds 108 bytes, the last of which is a zero. */
    private static final int PATH_BYTES_MAX = 107;

    static final ConfigDef DEFINITION = new ConfigDef()
        .define(SOCKET_PATH, Type.STRING, "/run/rlmm/rlmm.sock", Importance.HIGH,
            "The daemon's Unix socket. %{broker.id} in it is replaced by the broker's id.")
        .define(DAEMON_USER, Type.STRING, "", Importance.MEDIUM,
            "The only user, by name or number, whose daemon is spoken to. Without it any is, but files are opened only for"
                + " this broker's own user, root and rlmm.")
        .define(METADATA_TIMEOUT_MS, Type.INT, 5_000, Range.between(10, 600_000), Importance.MEDIUM,
            "Of every metadata call but isReady.")
        .define(READY_TIMEOUT_MS, Type.INT, 500, Range.between(1, 60_000), Importance.LOW,
            "Of isReady; without an answer by then it is false.")
        .define(HOLD_MS, Type.INT, 100, Range.between(0, 10_000), Importance.LOW,
            "How long a read waits for a daemon that is away or not ready before it is refused as retriable.")
        .define(LOOKUP_REUSE_MS, Type.INT, 50, Range.between(0, 1_000), Importance.LOW,
            "How long a segment that was found answers for its other offsets too, without a question to the daemon.")
        .define(COPY_TIMEOUT_MS, Type.INT, 1_260_000, Range.atLeast(100), Importance.MEDIUM,
            "Of copying one segment; a little more than the daemon's own copy.deadline_seconds.")
        .define(FETCH_TIMEOUT_MS, Type.INT, 30_000, Range.between(10, 3_600_000), Importance.MEDIUM,
            "How long a fetch waits for its next bytes.")
        .define(INDEX_TIMEOUT_MS, Type.INT, 5_000, Range.between(10, 3_600_000), Importance.MEDIUM,
            "Of fetching an index. A replica fetcher thread may wait: keep it well below replica.lag.time.max.ms.")
        .define(DELETE_TIMEOUT_MS, Type.INT, 5_000, Range.between(10, 600_000), Importance.MEDIUM,
            "Of deleting one segment. The broker may hold a lock meanwhile.")
        .define(DELETE_FAIL_FAST_MS, Type.INT, 60_000, Range.atLeast(0), Importance.LOW,
            "In a topic's deletion, after a call that nobody answered, that partition's are refused at once for so long.")
        .define(DELETE_HOLD_MS, Type.INT, 10_000, Range.between(0, 60_000), Importance.LOW,
            "How long, within a minute, the deletion of topics waits for a daemon that is away or not ready.")
        .define(FETCH_CONNECTIONS_MAX, Type.INT, 128, Range.between(1, 1_000), Importance.LOW,
            "Streams that may be open at once.")
        .define(FETCH_OPEN_FILES, Type.BOOLEAN, true, Importance.LOW,
            "Read segments that the daemon keeps as files of this host from those, where the broker's user may.")
        .define(RECONNECT_MS, Type.INT, 20, Range.between(1, 60_000), Importance.LOW,
            "The first pause before connecting again; it doubles up to reconnect.max.ms.")
        .define(RECONNECT_MAX_MS, Type.INT, 500, Range.between(1, 60_000), Importance.LOW,
            "The longest pause before connecting again.")
        .define(IN_FLIGHT_MAX, Type.INT, 512, Range.between(1, 65_536), Importance.LOW,
            "Requests sent and not answered; below the daemon's socket.requests_per_connection_max.")
        .define(WAITING_MAX, Type.INT, 65_536, Range.between(1, 1_000_000), Importance.LOW,
            "Requests that wait for their turn; more are refused as retriable.")
        .define(SINGLE_BROKER_CHECK, Type.BOOLEAN, true, Importance.LOW,
            "Refuse a daemon's log for one broker (event_log.single_broker) in a cluster of several.");

    private final AbstractConfig values;
    private final int brokerId;
    private final String clusterId;
    private final String socketPath;
    private final Map<String, Object> clientSettings;
    private final Set<String> ignored = new TreeSet<>();

    /**
     * Reads and checks everything.
     *
     * @throws ConfigException with the key and what to do about it; the broker then does not start
     */
    PluginConfig(Map<String, ?> given, boolean needsCluster) {
        Map<String, Object> plain = new HashMap<>();
        for (Map.Entry<String, ?> each : given.entrySet()) {
            Object value = each.getValue();
            plain.put(each.getKey(), value instanceof Number ? value.toString() : value);
        }
        this.values = new AbstractConfig(DEFINITION, plain, false);
        this.brokerId = brokerId(given.get(BROKER_ID));
        Object cluster = given.get(CLUSTER_ID);
        if (cluster == null && needsCluster) {
            throw new ConfigException(CLUSTER_ID, null, "the broker gives it to its RemoteLogMetadataManager");
        }
        this.clusterId = cluster == null ? null : cluster.toString();
        this.socketPath = socketPath(values.getString(SOCKET_PATH), brokerId);
        this.clientSettings = values.originalsWithPrefix(CLIENT_PREFIX);
        for (String key : given.keySet()) {
            if (!DEFINITION.names().contains(key) && !BROKERS.contains(key) && !key.startsWith(KAFKAS_PREFIX)) {
                ignored.add(key);
            }
        }
        if (!ignored.isEmpty()) {
            LOG.warn("These are no keys of the plugin, and change nothing: {}", ignored);
        }
    }

    private static int brokerId(Object given) {
        if (given == null) {
            throw new ConfigException(BROKER_ID, null, "the broker gives it to its plugins");
        }
        return Integer.parseInt(given.toString());
    }

    private static String socketPath(String configured, int brokerId) {
        String path = configured.replace(BROKER_ID_PLACE, Integer.toString(brokerId));
        int size = path.getBytes(StandardCharsets.UTF_8).length;
        if (size > PATH_BYTES_MAX) {
            throw new ConfigException(SOCKET_PATH, path,
                "has " + size + " bytes, more than the " + PATH_BYTES_MAX + " that a Unix socket address holds");
        }
        return path;
    }

    int brokerId() {
        return brokerId;
    }

    /** Null for a storage manager: the broker does not tell it. */
    String clusterId() {
        return clusterId;
    }

    String socketPath() {
        return socketPath;
    }

    /** The same for both managers of a broker, another one after its restart. */
    long brokerIncarnation() {
        return ManagementFactory.getRuntimeMXBean().getStartTime();
    }

    /** Null unless {@code remote.log.metadata.manager.listener.name} is set. */
    String bootstrap() {
        Object servers = clientSettings.get("bootstrap.servers");
        return servers == null ? null : servers.toString();
    }

    /** For a client of the broker's own cluster: bootstrap servers, security and SASL settings. */
    Map<String, Object> clientSettings() {
        return clientSettings;
    }

    /** Keys that mean nothing here: misspelt, or of another manager. */
    Set<String> ignored() {
        return ignored;
    }

    int integer(String key) {
        return values.getInt(key);
    }

    /** Empty for none in particular. */
    String daemonUser() {
        return values.getString(DAEMON_USER);
    }

    boolean opensFiles() {
        return values.getBoolean(FETCH_OPEN_FILES);
    }

    boolean singleBrokerCheck() {
        return values.getBoolean(SINGLE_BROKER_CHECK);
    }
}
