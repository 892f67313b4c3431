import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/**
 * Bursts of DELETE_SEGMENT_STARTED, as a broker makes them of a whole partition. `BurstBench fill BOOTSTRAP LANES SEGMENTS`
 * writes finished segments of one user partition for each metadata partition below LANES, into a topic that it makes if
 * there is none. `BurstBench run CLASS BOOTSTRAP
 * CLUSTER_ID SOCKET PIDS LANE:SEGMENTS:IN_FLIGHT...` announces those partitions to a manager, marks so many segments of
 * each, and prints one line of JSON: for each burst seconds, failures and latencies, and the processor time of this
 * process and of others whose ids stand in PIDS, by a comma.
 */
public final class BurstBench {
    private static final String TOPIC = "__remote_log_metadata";
    private static final int METADATA_PARTITIONS = 50;
    /** Of each burst, the first of them are not timed: a broker's JVM has long compiled all this. */
    private static final int WARM_UP_MAX = 5_000;

    public static void main(String[] args) {
        int code = 1;
        try {
            if (args[0].equals("fill")) {
                fill(args[1], Integer.parseInt(args[2]), Integer.parseInt(args[3]));
            } else {
                run(args);
            }
            code = 0;
        } catch (Exception failed) {
            failed.printStackTrace();
        }
        System.exit(code); // a manager's own threads would keep the process alive
    }

    /** The user partition whose events are in this metadata partition. */
    private static TopicIdPartition home(int lane) {
        var partitioner = new RemoteLogMetadataTopicPartitioner(METADATA_PARTITIONS);
        for (long number = 1;; number++) {
            var user = new TopicIdPartition(new Uuid(0x0b, number), new TopicPartition("burst-" + lane, 0));
            if (partitioner.metadataPartition(user) == lane) {
                return user;
            }
        }
    }

    private static RemoteLogSegmentId id(TopicIdPartition user, int lane, int segment) {
        return new RemoteLogSegmentId(user, new Uuid(lane + 1, segment + 1));
    }

    private static RemoteLogSegmentMetadataUpdate to(RemoteLogSegmentState state, RemoteLogSegmentId id) {
        // As of now: a cleaner takes over what was begun to be deleted long ago.
        return new RemoteLogSegmentMetadataUpdate(id, System.currentTimeMillis(), Optional.empty(), state, 1);
    }

    private static void fill(String bootstrap, int lanes, int segments) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var topic = new NewTopic(TOPIC, METADATA_PARTITIONS, (short) 1);
            if (!admin.listTopics().names().get().contains(TOPIC)) {
                admin.createTopics(List.of(topic.configs(Map.of("retention.ms", "-1", "cleanup.policy", "delete")))).all().get();
            }
            Bench.awaitLeaders(admin, TOPIC, METADATA_PARTITIONS);
        }
        var serde = new RemoteLogMetadataSerde();
        var settings = Map.<String, Object>of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 20);
        var failed = new AtomicReference<Exception>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int lane = 0; lane < lanes; lane++) {
                TopicIdPartition user = home(lane);
                for (int segment = 0; segment < segments; segment++) {
                    var id = id(user, lane, segment);
                    var started = new RemoteLogSegmentMetadata(id, segment * 1000L, segment * 1000L + 999, 1_700_000_000_000L, 1,
                        1_700_000_000_000L, 1 << 30, Map.of(0, segment * 1000L));
                    for (RemoteLogMetadata event : List.of(started, to(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, id))) {
                        producer.send(new ProducerRecord<>(TOPIC, lane, null, serde.serialize(event)), (at, why) -> {
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
    }

    private record Burst(int lane, int segments, int inFlight) {
        static Burst of(String text) {
            int[] numbers = Arrays.stream(text.split(":")).mapToInt(Integer::parseInt).toArray();
            return new Burst(numbers[0], numbers[1], numbers[2]);
        }
    }

    private static void run(String[] args) throws Exception {
        var manager = (RemoteLogMetadataManager) Class.forName(args[1]).getConstructor().newInstance();
        List<Burst> bursts = Arrays.stream(args).skip(6).map(Burst::of).toList();
        Set<TopicIdPartition> all = new HashSet<>();
        bursts.forEach(burst -> all.add(home(burst.lane)));
        manager.configure(ManagerBench.settings(Arrays.copyOfRange(args, 1, 5)));
        ManagerBench.announce(manager, all);
        long[] pids = Arrays.stream(args[5].split(",")).mapToLong(Long::parseLong).toArray();
        ObjectNode out = new ObjectMapper().createObjectNode();
        for (Burst burst : bursts) {
            int warmUp = Math.min(WARM_UP_MAX, burst.segments / 4);
            int failed = mark(manager, burst, 0, warmUp, new double[warmUp]);
            var micros = new double[burst.segments - warmUp];
            double[] before = cpuSeconds(pids);
            long begun = System.nanoTime();
            failed += mark(manager, burst, warmUp, burst.segments, micros);
            double seconds = (System.nanoTime() - begun) / 1e9;
            double[] after = cpuSeconds(pids);
            Arrays.sort(micros);
            ObjectNode found = out.putObject(String.valueOf(burst.inFlight));
            found.put("seconds", seconds).put("rate", micros.length / seconds).put("failed", failed);
            found.put("p50_us", micros[micros.length / 2]).put("p99_us", micros[micros.length * 99 / 100]);
            var cpu = found.putArray("cpu_us_each");
            for (int at = 0; at < before.length; at++) {
                cpu.add((after[at] - before[at]) * 1e6 / micros.length);
            }
        }
        System.out.println(out);
    }

    /** Returns how many failed; `micros` is how long each of them took. */
    private static int mark(RemoteLogMetadataManager manager, Burst burst, int from, int to, double[] micros) throws Exception {
        TopicIdPartition user = home(burst.lane);
        var permits = new Semaphore(burst.inFlight);
        var failed = new AtomicInteger();
        for (int segment = from; segment < to; segment++) {
            permits.acquire();
            int at = segment - from;
            long begun = System.nanoTime();
            mark(manager, to(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, id(user, burst.lane, segment)))
                .whenComplete((done, error) -> {
                    micros[at] = (System.nanoTime() - begun) / 1e3;
                    if (error != null && failed.getAndIncrement() == 0) {
                        error.printStackTrace();
                    }
                    permits.release();
                });
        }
        if (!permits.tryAcquire(burst.inFlight, 300, TimeUnit.SECONDS)) {
            throw new IllegalStateException("some were never answered");
        }
        return failed.get();
    }

    private static CompletableFuture<Void> mark(RemoteLogMetadataManager manager, RemoteLogSegmentMetadataUpdate update) {
        try {
            return manager.updateRemoteLogSegmentMetadata(update);
        } catch (Exception refused) { // at once
            return CompletableFuture.failedFuture(refused);
        }
    }

    /** Of this process, then of each other one. */
    private static double[] cpuSeconds(long[] pids) {
        var seconds = new double[pids.length + 1];
        seconds[0] = ProcessHandle.current().info().totalCpuDuration().orElseThrow().toNanos() / 1e9;
        for (int at = 0; at < pids.length; at++) {
            seconds[at + 1] = ProcessHandle.of(pids[at]).orElseThrow().info().totalCpuDuration().orElseThrow().toNanos() / 1e9;
        }
        return seconds;
    }
}
