import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers and consumers of numbered records, each of whose bytes follow from topic, partition and
 * number: whoever reads one can tell whether it is the one that was written.
 *
 * <p>No consumer here may reset its position: out of range is an error (auto.offset.reset=none).
 */
final class Traffic {
    private static final long SECONDS = 120;

    private final String bootstrap;
    private final Admin admin;
    private Load load;
    private Follower follower;

    Traffic(String bootstrap, Admin admin) {
        this.bootstrap = bootstrap;
        this.admin = admin;
    }

    void handle(JsonNode ask, ObjectNode answer) throws Exception {
        switch (ask.get("op").asText()) {
            case "write" -> write(ask, answer);
            case "read" -> read(ask, answer);
            case "offset" -> offset(ask, answer);
            case "load_start" -> {
                load = new Load(ask);
                load.start();
            }
            case "load_state" -> load.tell(answer);
            case "load_stop" -> {
                load.end();
                load.tell(answer);
            }
            case "load_check" -> load.check(answer);
            case "load_follow" -> {
                follower = new Follower(ask);
                follower.start();
            }
            case "load_followed" -> follower.tell(answer);
            default -> throw new IllegalArgumentException(ask.toString());
        }
    }

    // ---- what a record is ----------------------------------------------------------------------

    /** The number, then bytes of which every second is luck: they compress, but not to nothing. */
    private static byte[] value(TopicPartition where, long number, int size) {
        byte[] bytes = new byte[Math.max(8, size)];
        ByteBuffer.wrap(bytes).putLong(number);
        long luck = where.hashCode() * 0x9E3779B97F4A7C15L + number;
        for (int at = 8; at < bytes.length; at += 16) {
            luck += 0x9E3779B97F4A7C15L;
            long mixed = (luck ^ (luck >>> 30)) * 0xBF58476D1CE4E5B9L;
            mixed ^= mixed >>> 27;
            for (int next = at; next < Math.min(at + 16, bytes.length); next += 2) {
                bytes[next] = (byte) (mixed >>> (4 * (next - at)));
            }
        }
        return bytes;
    }

    private static byte[] key(long number) {
        return ("key-" + number).getBytes(StandardCharsets.UTF_8);
    }

    private static ProducerRecord<byte[], byte[]> record(TopicPartition where, long number, int size, Long timestamp) {
        var record = new ProducerRecord<>(where.topic(), where.partition(), timestamp, key(number), value(where, number, size));
        record.headers().add(new RecordHeader("number", key(number)));
        return record;
    }

    /** The number of a record; -1 if a byte of it is not as it was written. */
    private static long number(ConsumerRecord<byte[], byte[]> record) {
        var where = new TopicPartition(record.topic(), record.partition());
        long number = ByteBuffer.wrap(record.value()).getLong();
        boolean same = Arrays.equals(record.value(), value(where, number, record.value().length))
            && Arrays.equals(record.key(), key(number))
            && record.headers().lastHeader("number") != null
            && Arrays.equals(record.headers().lastHeader("number").value(), key(number));
        return same ? number : -1;
    }

    // ---- one partition, once -------------------------------------------------------------------

    /** Writes `count` records from `first` on; in transactions of `transaction` records, every third aborted. */
    private void write(JsonNode ask, ObjectNode answer) throws Exception {
        TopicPartition where = partition(ask);
        long first = ask.get("first").asLong();
        int count = ask.get("count").asInt();
        int each = ask.path("transaction").asInt(0);
        var settings = producerSettings(ask);
        if (each > 0) {
            settings.put("transactional.id", ask.path("transactional_id").asText("traffic-" + where));
        }
        long last = -1;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (each > 0) {
                producer.initTransactions();
            }
            int step = each > 0 ? each : count;
            for (int at = 0; at < count; at += step) {
                if (each > 0) {
                    producer.beginTransaction();
                }
                var sent = new ArrayList<Future<RecordMetadata>>();
                for (long number = first + at; number < first + Math.min(count, at + step); number++) {
                    Long timestamp = ask.has("base_ms") ? (Long) (ask.get("base_ms").asLong() + number) : null;
                    sent.add(producer.send(record(where, number, ask.get("size").asInt(), timestamp)));
                }
                producer.flush();
                for (var future : sent) {
                    last = get(future).offset();
                }
                if (each > 0 && at / step % 3 == 2) {
                    producer.abortTransaction();
                } else if (each > 0) {
                    producer.commitTransaction();
                }
            }
        }
        answer.put("last_offset", last);
    }

    private HashMap<String, Object> producerSettings(JsonNode ask) {
        var settings = new HashMap<String, Object>(Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 5,
            "batch.size", 65_536, "delivery.timeout.ms", 300_000));
        if (ask.has("compression")) {
            settings.put("compression.type", ask.get("compression").asText());
        }
        return settings;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String isolation) {
        return new KafkaConsumer<>(Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "none",
            "enable.auto.commit", false, "isolation.level", isolation), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Reads from an offset or a timestamp to what is the end now; answers the numbers as ranges. */
    private void read(JsonNode ask, ObjectNode answer) throws Exception {
        TopicPartition where = partition(ask);
        try (var consumer = consumer(ask.path("isolation").asText("read_uncommitted"))) {
            consumer.assign(List.of(where));
            long from = ask.path("offset").asLong(0);
            if (ask.has("timestamp")) {
                var found = consumer.offsetsForTimes(Map.of(where, ask.get("timestamp").asLong()), Duration.ofSeconds(SECONDS)).get(where);
                if (found == null) {
                    answer.putNull("first_offset");
                    return;
                }
                from = found.offset();
            }
            long end = consumer.endOffsets(List.of(where), Duration.ofSeconds(SECONDS)).get(where);
            consumer.seek(where, from);
            long deadline = deadline(ask);
            var ranges = new Ranges();
            int wrong = 0;
            while (position(consumer, where) < end) {
                require(deadline, "read " + where + " is at " + consumer.position(where) + " of " + end);
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    long number = number(record);
                    wrong += number < 0 ? 1 : 0;
                    ranges.add(number);
                }
            }
            answer.put("first_offset", from).put("next_offset", end).put("wrong", wrong);
            ranges.tell(answer.putArray("ranges"));
        }
    }

    private static long position(KafkaConsumer<byte[], byte[]> consumer, TopicPartition where) {
        return consumer.position(where, Duration.ofSeconds(SECONDS));
    }

    private void offset(JsonNode ask, ObjectNode answer) throws Exception {
        OffsetSpec which = switch (ask.get("which").asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "earliest-local" -> OffsetSpec.earliestLocal();
            case "latest-tiered" -> OffsetSpec.latestTiered();
            case "latest" -> OffsetSpec.latest();
            default -> OffsetSpec.forTimestamp(ask.get("which").asLong());
        };
        answer.put("offset", get(admin.listOffsets(Map.of(partition(ask), which)).partitionResult(partition(ask))).offset());
    }

    /** Numbers that follow each other, told as pairs of first and last. */
    private static final class Ranges {
        private final List<long[]> found = new ArrayList<>();

        void add(long number) {
            long[] last = found.isEmpty() ? null : found.get(found.size() - 1);
            if (last != null && last[1] + 1 == number) {
                last[1] = number;
            } else {
                found.add(new long[]{number, number});
            }
        }

        void tell(ArrayNode rows) {
            found.forEach(each -> rows.addArray().add(each[0]).add(each[1]));
        }
    }

    // ---- many partitions, all the while --------------------------------------------------------

    /** Writes to every partition of a topic until it is told to end, and knows what was acknowledged. */
    private final class Load extends Thread {
        private final String topic;
        private final int partitions;
        private final int size;
        private final int perSecond;
        private final JsonNode ask;
        private final BitSet[] acknowledged;
        private long failed;
        private String failure = "";
        private volatile long written;
        private volatile boolean ending;

        Load(JsonNode ask) {
            super("load");
            this.ask = ask;
            this.topic = ask.get("topic").asText();
            this.partitions = ask.get("partitions").asInt();
            this.size = ask.get("size").asInt();
            this.perSecond = ask.get("per_second").asInt();
            this.acknowledged = new BitSet[partitions];
            Arrays.setAll(acknowledged, each -> new BitSet());
            setDaemon(true);
        }

        @Override
        public void run() {
            long begun = System.nanoTime();
            try (var producer = new KafkaProducer<>(producerSettings(ask), new ByteArraySerializer(), new ByteArraySerializer())) {
                for (long at = 0; !ending; at++) {
                    int partition = (int) (at % partitions);
                    int number = (int) (at / partitions);
                    producer.send(record(new TopicPartition(topic, partition), number, size, null),
                        (metadata, error) -> ended(partition, number, error));
                    written = at + 1;
                    long aheadNanos = at * 1_000_000_000L / perSecond - (System.nanoTime() - begun);
                    if (aheadNanos > 0) {
                        TimeUnit.NANOSECONDS.sleep(aheadNanos);
                    }
                }
                producer.flush();
            } catch (InterruptedException never) {
                Thread.currentThread().interrupt();
            }
        }

        private synchronized void ended(int partition, int number, Exception error) {
            if (error == null) {
                acknowledged[partition].set(number);
            } else {
                failed++;
                failure = error.toString();
            }
        }

        void end() throws InterruptedException {
            ending = true;
            join(TimeUnit.SECONDS.toMillis(3 * SECONDS));
        }

        synchronized void tell(ObjectNode answer) {
            answer.put("written", written).put("failed", failed).put("failure", failure).put("running", isAlive());
            ArrayNode counts = answer.putArray("acknowledged");
            for (BitSet each : acknowledged) {
                counts.add(each.cardinality());
            }
        }

        /** Reads everything from offset 0: what was acknowledged is there, once, in order, byte for byte. */
        void check(ObjectNode answer) throws Exception {
            long missing = 0, twice = 0, wrong = 0, disordered = 0, read = 0;
            List<TopicPartition> all = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                all.add(new TopicPartition(topic, partition));
            }
            BitSet[] seen = new BitSet[partitions];
            Arrays.setAll(seen, each -> new BitSet());
            try (var consumer = consumer("read_uncommitted")) {
                consumer.assign(all);
                all.forEach(each -> consumer.seek(each, 0));
                var ends = consumer.endOffsets(all, Duration.ofSeconds(SECONDS));
                long deadline = deadline(ask);
                while (all.stream().anyMatch(each -> position(consumer, each) < ends.get(each))) {
                    require(deadline, "check of " + topic + " has read " + read);
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        long number = number(record);
                        BitSet those = seen[record.partition()];
                        read++;
                        if (number < 0) {
                            wrong++;
                        } else if (those.get((int) number)) {
                            twice++;
                        } else {
                            disordered += those.length() > number ? 1 : 0;
                            those.set((int) number);
                        }
                    }
                }
            }
            synchronized (this) {
                for (int partition = 0; partition < partitions; partition++) {
                    BitSet lost = (BitSet) acknowledged[partition].clone();
                    lost.andNot(seen[partition]);
                    missing += lost.cardinality();
                }
            }
            answer.put("read", read).put("missing", missing).put("twice", twice).put("wrong", wrong).put("disordered", disordered);
        }
    }

    /** Reads every partition of a topic from offset 0 on, and then whatever comes, until the JVM ends. */
    private final class Follower extends Thread {
        private final List<TopicPartition> all = new ArrayList<>();
        private final long[] read;
        private volatile String failure = "";
        private volatile long wrong;

        Follower(JsonNode ask) {
            super("follower");
            this.read = new long[ask.get("partitions").asInt()];
            for (int partition = 0; partition < read.length; partition++) {
                all.add(new TopicPartition(ask.get("topic").asText(), partition));
            }
            setDaemon(true);
        }

        @Override
        public void run() {
            try (var consumer = consumer("read_uncommitted")) {
                consumer.assign(all);
                all.forEach(each -> consumer.seek(each, 0));
                while (true) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        wrong += number(record) == record.offset() ? 0 : 1;
                        synchronized (read) {
                            read[record.partition()]++;
                        }
                    }
                }
            } catch (RuntimeException ended) { // a reset that was not allowed, for one
                failure = ended.toString();
            }
        }

        void tell(ObjectNode answer) {
            answer.put("wrong", wrong).put("failure", failure);
            ArrayNode counts = answer.putArray("read");
            synchronized (read) {
                Arrays.stream(read).forEach(counts::add);
            }
        }
    }

    // ---- requests ------------------------------------------------------------------------------

    private static long deadline(JsonNode ask) {
        return System.nanoTime() + TimeUnit.SECONDS.toNanos(ask.path("seconds").asLong(90));
    }

    private static void require(long deadline, String what) {
        if (System.nanoTime() > deadline) {
            throw new IllegalStateException("not in time: " + what);
        }
    }

    private static <T> T get(Future<T> future) throws Exception {
        return future.get(SECONDS, TimeUnit.SECONDS);
    }

    private static TopicPartition partition(JsonNode ask) {
        return new TopicPartition(ask.get("topic").asText(), ask.get("partition").asInt());
    }
}
