import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills the topics, one step a run: `create`, `fill PHASE`, `await`, `retire`, `drop`.
 *
 * Each flush makes one batch, all its records carry one timestamp and their content depends on a
 * counter only, so the offsets and the cuts between segments are the same at every run. Ids, times
 * and therefore CRCs are not.
 */
public final class Produce {
    static final String ORDERS = "orders";
    static final String CARTS = "carts";
    private static final int PHASES = 4;

    private final String bootstrap;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    private Produce(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        var produce = new Produce(args[0]);
        switch (args[1]) {
            case "create" -> produce.create();
            case "fill" -> produce.fill(Integer.parseInt(args[2]));
            case "await" -> produce.awaitTiered(Path.of(args[2]));
            case "retire" -> produce.retire();
            case "drop" -> produce.drop();
            default -> throw new IllegalArgumentException(args[1]);
        }
        produce.producers.values().forEach(KafkaProducer::close);
    }

    private void create() throws Exception {
        var config = Map.of(
            "remote.storage.enable", "true",
            "internal.segment.bytes", "49152", // segment.bytes starts at 1 MiB; Kafka's own tests use this one
            "index.interval.bytes", "1024",
            "segment.ms", Long.toString(Long.MAX_VALUE), // size alone cuts segments
            "retention.ms", "-1");
        try (Admin admin = admin()) {
            admin.createTopics(List.of(
                new NewTopic(ORDERS, 2, (short) 1).configs(config),
                new NewTopic(CARTS, 1, (short) 1).configs(config))).all().get();
        }
    }

    /** Phase 0 has no aborted transactions at all; later phases abort in one partition only. */
    private void fill(int phase) {
        if (phase == 0) {
            for (int i = 0; i < 28; i++) {
                batch("plain", "none", CARTS, 0, 1_000_000 + 100 * i, 50);
            }
        }
        for (int partition = 0; partition < 2; partition++) {
            int at = 100_000 * partition + 10_000 * phase;
            batch("plain", "none", ORDERS, partition, at, 40);
            batch("unordered", "none", ORDERS, partition, at + 100, 1);
            batch("plain", "gzip", ORDERS, partition, at + 200, 120);
            batch("plain", "zstd", ORDERS, partition, at + 400, 160);
            transaction("tx-a", "none", partition, at + 600, 30, true);
            transaction("tx-b", "zstd", partition, at + 700, 90, true);
            if (phase == 1 + partition || phase == 3) {
                transaction("tx-a", "gzip", partition, at + 800, 60, false);
                transaction("tx-b", "none", partition, at + 900, 25, false);
                wideTransaction(partition, at + 1000);
            }
            for (int i = 0; i < 12; i++) {
                batch("plain", List.of("none", "gzip", "zstd").get(i % 3), ORDERS, partition, at + 3000 + 100 * i, 45);
            }
        }
        twoPartitionTransaction(phase);
        if (phase == PHASES - 1) {
            for (int i = 0; i < 10; i++) {
                batch("plain", "none", ORDERS, 0, 300_000 + 100 * i, 45);
                batch("plain", "none", ORDERS, 1, 400_000 + 100 * i, 45);
            }
        }
    }

    private void transaction(String id, String codec, int partition, int at, int records, boolean commit) {
        var producer = producer(id, codec, true);
        producer.beginTransaction();
        batch(producer, ORDERS, partition, at, records);
        batch(producer, ORDERS, partition, at + 50, records / 3);
        end(producer, commit, partition);
    }

    /** An aborted transaction that begins in one segment and ends in another, others' batches between. */
    private void wideTransaction(int partition, int at) {
        var wide = producer("tx-wide", "none", true);
        wide.beginTransaction();
        batch(wide, ORDERS, partition, at, 10);
        for (int i = 0; i < 8; i++) {
            batch("plain", "none", ORDERS, partition, at + 100 + 100 * i, 35);
        }
        transaction("tx-a", "none", partition, at + 1000, 20, true);
        batch(wide, ORDERS, partition, at + 1200, 10);
        end(wide, false, partition);
    }

    private void twoPartitionTransaction(int phase) {
        var producer = producer("tx-both", "gzip", true);
        producer.beginTransaction();
        batch(producer, ORDERS, 0, 200_000 + 1000 * phase, 20);
        batch(producer, ORDERS, 1, 250_000 + 1000 * phase, 20);
        end(producer, true, 0, 1);
    }

    /** Returns once the markers are in the logs; Kafka acknowledges the end of a transaction before that. */
    private void end(KafkaProducer<byte[], byte[]> producer, boolean commit, int... partitions) {
        try (Admin admin = admin()) {
            var ends = new HashMap<TopicPartition, Long>();
            for (int partition : partitions) {
                var orders = new TopicPartition(ORDERS, partition);
                ends.put(orders, offset(admin, orders, OffsetSpec.latest()) + 1);
            }
            if (commit) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
            ends.forEach((orders, end) ->
                await("the marker in " + orders, () -> offset(admin, orders, OffsetSpec.latest()) == end));
        }
    }

    private void batch(String id, String codec, String topic, int partition, int at, int records) {
        batch(producer(id, codec, false), topic, partition, at, records);
    }

    private static void batch(KafkaProducer<byte[], byte[]> producer, String topic, int partition, int at, int records) {
        long now = System.currentTimeMillis();
        for (int i = 0; i < records; i++) {
            producer.send(order(topic, partition, at + i, now));
        }
        producer.flush();
    }

    /** Every 17th has no key, every 29th no value, every 13th a header. */
    private static ProducerRecord<byte[], byte[]> order(String topic, int partition, int number, long now) {
        var random = new Random(number);
        byte[] key = number % 17 == 0 ? null : bytes("order-" + number);
        byte[] value = number % 29 == 0 ? null : bytes(String.format(
            "{\"order\":%d,\"customer\":%d,\"token\":\"%016x%016x\",\"items\":[{\"sku\":\"SKU-%05d\",\"count\":%d}],\"total\":%d.%02d}",
            number, random.nextInt(100_000), random.nextLong(), random.nextLong(),
            random.nextInt(100_000), 1 + random.nextInt(9), 10 + random.nextInt(90), random.nextInt(100)));
        var record = new ProducerRecord<>(topic, partition, now, key, value);
        if (number % 13 == 0) {
            record.headers().add("trace", bytes("t" + number));
        }
        return record;
    }

    private KafkaProducer<byte[], byte[]> producer(String id, String codec, boolean transactional) {
        return producers.computeIfAbsent(id + "/" + codec, name -> {
            var config = new HashMap<String, Object>();
            config.put("bootstrap.servers", bootstrap);
            config.put("compression.type", codec);
            config.put("linger.ms", 60_000); // only flush() sends
            config.put("batch.size", 1 << 20);
            config.put("enable.idempotence", !id.equals("unordered"));
            if (transactional) {
                config.put("transactional.id", name);
            }
            var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
            if (transactional) {
                producer.initTransactions();
            }
            return producer;
        });
    }

    /** Returns once every closed segment is in the remote tier. */
    private void awaitTiered(Path logDir) throws Exception {
        try (Admin admin = admin()) {
            for (var partition : List.of(new TopicPartition(ORDERS, 0), new TopicPartition(ORDERS, 1), new TopicPartition(CARTS, 0))) {
                long last = activeBaseOffset(logDir, partition) - 1;
                await("tiering of " + partition, () -> offset(admin, partition, OffsetSpec.latestTiered()) == last);
            }
        }
    }

    static long activeBaseOffset(Path logDir, TopicPartition partition) throws IOException {
        try (var files = Files.list(logDir.resolve(partition.toString()))) {
            return files.map(f -> f.getFileName().toString()).filter(f -> f.endsWith(".log"))
                .mapToLong(f -> Long.parseLong(f.substring(0, 20))).max().orElseThrow();
        }
    }

    /** Lets Kafka delete the first remote segments of `carts`, for the records which that leaves. */
    private void retire() throws Exception {
        var carts = new TopicPartition(CARTS, 0);
        try (Admin admin = admin()) {
            long before = offset(admin, carts, OffsetSpec.latestTiered()) / 2 + 1;
            admin.deleteRecords(Map.of(carts, RecordsToDelete.beforeOffset(before))).all().get();
        }
    }

    private void drop() throws Exception {
        try (Admin admin = admin()) {
            admin.deleteTopics(List.of(CARTS)).all().get();
        }
    }

    private static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) {
        try {
            return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void await(String what, BooleanSupplier condition) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("gave up waiting for " + what);
            }
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
