import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/**
 * The peer of tests/benchmarks/kafka.py: `Bench fill BOOTSTRAP EVENTS` fills the metadata topic,
 * `Bench run BOOTSTRAP WRITES` measures Kafka's own manager on it and prints one line of JSON.
 */
public final class Bench {
    private static final String TOPIC = "__remote_log_metadata";
    private static final int METADATA_PARTITIONS = 50;
    private static final int FIRST_PARTITIONS = 100;
    /** The last ones are announced only later, one after another: each is "one more user partition". */
    private static final int USER_PARTITIONS = 106;
    private static final long MSB = 0x0102030405060708L, LSB = 0x090a0b0c0d0e0f10L;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("fill")) {
            fill(args[1], Integer.parseInt(args[2]));
        } else {
            run(args[1], Integer.parseInt(args[2]));
        }
        System.exit(0);
    }

    static TopicIdPartition user(int number) {
        int topic = number / 10;
        return new TopicIdPartition(new Uuid(MSB + topic, LSB), new TopicPartition("topic-" + topic, number % 10));
    }

    private static RemoteLogSegmentMetadata started(TopicIdPartition partition, long segment, long number) {
        var id = new RemoteLogSegmentId(partition, new Uuid(segment + 1, number));
        return new RemoteLogSegmentMetadata(id, segment * 1000, segment * 1000 + 999, 1_700_000_000_000L, 1, 1_700_000_000_000L,
            1 << 30, Map.of(0, segment * 1000));
    }

    private static RemoteLogSegmentMetadataUpdate finished(RemoteLogSegmentMetadata started) {
        return new RemoteLogSegmentMetadataUpdate(started.remoteLogSegmentId(), 1_700_000_000_001L, java.util.Optional.empty(),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1);
    }

    private static void fill(String bootstrap, int events) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var topic = new NewTopic(TOPIC, METADATA_PARTITIONS, (short) 1);
            admin.createTopics(List.of(topic.configs(Map.of("retention.ms", "-1", "cleanup.policy", "delete")))).all().get();
            awaitLeaders(admin, TOPIC, METADATA_PARTITIONS);
        }
        var serde = new RemoteLogMetadataSerde();
        var partitioner = new RemoteLogMetadataTopicPartitioner(METADATA_PARTITIONS);
        int each = events / 2 / USER_PARTITIONS;
        var settings = Map.<String, Object>of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 20);
        var failed = new AtomicReference<Exception>(); // one event too few is a look-up that rightly finds nothing
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int segment = 0; segment < each; segment++) {
                for (int number = 0; number < USER_PARTITIONS; number++) {
                    TopicIdPartition partition = user(number);
                    int target = partitioner.metadataPartition(partition);
                    var metadata = started(partition, segment, number);
                    for (RemoteLogMetadata event : List.of(metadata, finished(metadata))) {
                        producer.send(new ProducerRecord<>(TOPIC, target, null, serde.serialize(event)), (at, why) -> {
                            if (why != null) {
                                failed.compareAndSet(null, why);
                            }
                        });
                    }
                }
            }
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        System.out.println(each * 2L * USER_PARTITIONS);
    }

    /**
     * Returns once each partition's leader answers. A new topic's first batch may meet a broker that does
     * not lead yet, and its second one that does: from then on the broker refuses the first one's sequence
     * numbers, and an idempotent producer sends it again and again until its delivery times out.
     */
    static void awaitLeaders(Admin admin, String topic, int partitions) throws Exception {
        var ends = new HashMap<TopicPartition, OffsetSpec>();
        for (int partition = 0; partition < partitions; partition++) {
            ends.put(new TopicPartition(topic, partition), OffsetSpec.latest());
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            try {
                admin.listOffsets(ends).all().get(60, TimeUnit.SECONDS);
                return;
            } catch (ExecutionException failed) { // not even known yet to the broker that was asked
                if (!(failed.getCause() instanceof RetriableException) || System.nanoTime() > deadline) {
                    throw failed;
                }
                Thread.sleep(20);
            }
        }
    }

    private static void run(String bootstrap, int writes) throws Exception {
        ObjectNode out = new ObjectMapper().createObjectNode();
        Set<TopicIdPartition> first = new HashSet<>();
        for (int number = 0; number < FIRST_PARTITIONS; number++) {
            first.add(user(number));
        }
        var config = new HashMap<String, Object>();
        config.put("broker.id", 99);
        config.put("log.dir", Files.createTempDirectory("bench").toString());
        config.put("remote.log.metadata.common.client.bootstrap.servers", bootstrap);
        config.put("remote.log.metadata.topic.num.partitions", METADATA_PARTITIONS);
        config.put("remote.log.metadata.topic.replication.factor", (short) 1);
        config.put("remote.log.metadata.topic.min.isr", (short) 1);
        long begun = System.nanoTime();
        var manager = new TopicBasedRemoteLogMetadataManager();
        manager.configure(config);
        manager.onBrokerReady();
        manager.onPartitionLeadershipChanges(first, Set.of());
        for (var partition : first) {
            await(manager, partition);
        }
        out.put("cold_start_seconds", (System.nanoTime() - begun) / 1e9);
        sequential(manager, out, writes);
        inFlight(manager, out, writes * 20);
        oneMore(manager, out);
        System.out.println(out);
    }

    private static void await(TopicBasedRemoteLogMetadataManager manager, TopicIdPartition partition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (!manager.isReady(partition)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not ready: " + partition);
            }
            Thread.sleep(1);
        }
    }

    private static void sequential(TopicBasedRemoteLogMetadataManager manager, ObjectNode out, int writes) throws Exception {
        var seconds = new double[writes];
        for (int at = 0; at < writes; at++) {
            var metadata = started(user(at % 100), 1_000_000 + at, at);
            long begun = System.nanoTime();
            manager.addRemoteLogSegmentMetadata(metadata).get(60, TimeUnit.SECONDS);
            seconds[at] = (System.nanoTime() - begun) / 1e9;
        }
        Arrays.sort(seconds);
        out.put("write_p50_seconds", seconds[writes / 2]).put("write_p99_seconds", seconds[writes * 99 / 100]);
    }

    private static void inFlight(TopicBasedRemoteLogMetadataManager manager, ObjectNode out, int writes) throws Exception {
        var permits = new Semaphore(64);
        var all = new ArrayList<CompletableFuture<Void>>();
        long begun = System.nanoTime();
        for (int at = 0; at < writes; at++) {
            permits.acquire();
            all.add(manager.addRemoteLogSegmentMetadata(started(user(at % 100), 2_000_000 + at, at)).whenComplete((done, error) -> permits.release()));
        }
        CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(120, TimeUnit.SECONDS);
        out.put("writes_64_per_second", writes / ((System.nanoTime() - begun) / 1e9));
    }

    /** Announces partitions whose events are already there; a neighbour of each one's metadata partition writes on. */
    private static void oneMore(TopicBasedRemoteLogMetadataManager manager, ObjectNode out) throws Exception {
        var partitioner = new RemoteLogMetadataTopicPartitioner(METADATA_PARTITIONS);
        List<Double> ready = new ArrayList<>(), hit = new ArrayList<>(), written = new ArrayList<>();
        for (int one = FIRST_PARTITIONS; one < USER_PARTITIONS; one++) {
            TopicIdPartition more = user(one);
            int target = partitioner.metadataPartition(more);
            int beside = 0;
            while (beside < FIRST_PARTITIONS && partitioner.metadataPartition(user(beside)) != target) {
                beside++;
            }
            if (beside == FIRST_PARTITIONS) {
                continue; // alone in its metadata partition
            }
            long begun = System.nanoTime();
            manager.onPartitionLeadershipChanges(Set.of(more), Set.of());
            CompletableFuture<Void> write = manager.addRemoteLogSegmentMetadata(started(user(beside), 3_000_000 + one, 1));
            await(manager, more);
            ready.add((System.nanoTime() - begun) / 1e9);
            if (manager.remoteLogSegmentMetadata(more, 0, 500).isEmpty()) {
                throw new IllegalStateException("no hit");
            }
            hit.add((System.nanoTime() - begun) / 1e9);
            write.get(60, TimeUnit.SECONDS);
            written.add((System.nanoTime() - begun) / 1e9);
        }
        out.put("one_more_ready_seconds", median(ready)).put("one_more_hit_seconds", median(hit)).put("neighbour_write_seconds", median(written));
    }

    private static double median(List<Double> values) {
        return values.stream().sorted().toList().get(values.size() / 2);
    }
}
