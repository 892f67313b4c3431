import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.BrokerReadyCallback;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;

/**
 * One metadata manager as a broker uses it, whichever: `ManagerBench CLASS BOOTSTRAP CLUSTER_ID
 * SOCKET PARTITIONS SEGMENTS LOOKUPS` configures it, announces the partitions that `Bench fill`
 * wrote, waits until each is ready, looks offsets up, and prints one line of JSON.
 */
public final class ManagerBench {
    public static void main(String[] args) {
        int code = 1;
        try {
            measure(args);
            code = 0;
        } catch (Exception failed) {
            failed.printStackTrace();
        }
        System.exit(code); // a manager's own threads would keep the process alive
    }

    private static void measure(String[] args) throws Exception {
        var manager = (RemoteLogMetadataManager) Class.forName(args[0]).getConstructor().newInstance();
        Set<TopicIdPartition> all = new HashSet<>();
        for (int number = 0; number < Integer.parseInt(args[4]); number++) {
            all.add(Bench.user(number));
        }
        ObjectNode out = new ObjectMapper().createObjectNode();
        try (var admin = Admin.create(Map.of("bootstrap.servers", args[1]))) {
            admin.describeCluster().nodes().get(60, TimeUnit.SECONDS); // a broker has long loaded Kafka's clients
        }
        Uuid.randomUuid(); // and drawn the id of its incarnation
        long begun = System.nanoTime();
        manager.configure(settings(args));
        announce(manager, all);
        out.put("ready_seconds", (System.nanoTime() - begun) / 1e9);
        lookUp(manager, all.toArray(TopicIdPartition[]::new), Integer.parseInt(args[5]), Integer.parseInt(args[6]), out);
        System.out.println(out);
    }

    /** As the broker that leads them; returns once each is ready. */
    static void announce(RemoteLogMetadataManager manager, Set<TopicIdPartition> all) throws Exception {
        if (manager instanceof BrokerReadyCallback callback) {
            callback.onBrokerReady();
        }
        manager.onPartitionLeadershipChanges(all, Set.of());
        for (TopicIdPartition each : all) {
            await(manager, each);
        }
    }

    static Map<String, Object> settings(String[] args) throws Exception {
        var config = new HashMap<String, Object>();
        config.put("broker.id", 1);
        config.put("cluster.id", args[2]);
        config.put("socket.path", args[3]);
        config.put("log.dir", Files.createTempDirectory("bench").toString());
        config.put("remote.log.metadata.common.client.bootstrap.servers", args[1]);
        config.put("remote.log.metadata.topic.replication.factor", (short) 1);
        config.put("remote.log.metadata.topic.min.isr", (short) 1);
        config.put("lookup.reuse.ms", 0); // each look-up is to go to the daemon
        return config;
    }

    private static void await(RemoteLogMetadataManager manager, TopicIdPartition partition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (!manager.isReady(partition)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not ready: " + partition);
            }
            Thread.sleep(5);
        }
    }

    /**
     * One after the other, each of another partition and offset; the first third warms the JVM up.
     * `lookup_lost` counts those that found nothing though their partition had said that it is ready.
     */
    private static void lookUp(RemoteLogMetadataManager manager, TopicIdPartition[] all, int segments, int count, ObjectNode out)
            throws Exception {
        var luck = new Random(1);
        var micros = new double[count];
        int lost = 0;
        for (int at = -count / 3; at < count; at++) {
            TopicIdPartition where = all[luck.nextInt(all.length)];
            long offset = luck.nextInt(segments) * 1000L + luck.nextInt(1000);
            long begun = System.nanoTime();
            var found = manager.remoteLogSegmentMetadata(where, 0, offset);
            if (at >= 0) {
                micros[at] = (System.nanoTime() - begun) / 1e3;
            }
            if (found.isEmpty()) {
                lost++;
            } else if (found.get().startOffset() > offset || found.get().endOffset() < offset) {
                throw new IllegalStateException("another segment than that of " + offset + ": " + found.get());
            }
        }
        Arrays.sort(micros);
        out.put("lookup_p50_us", micros[count / 2]).put("lookup_p99_us", micros[count * 99 / 100]);
        out.put("lookup_lost", lost);
    }
}
