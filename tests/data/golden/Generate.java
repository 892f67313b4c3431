import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/** Writes the golden files with Kafka's own serde and partitioner. The same bytes at every run. */
public final class Generate {
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();
    private static final Uuid TOPIC_ID = Uuid.fromString("AQIDBAUGBwgJCgsMDQ4PEA");
    private static final Uuid SEGMENT_ID = Uuid.fromString("ERITFBUWFxgZGhscHR4fIA");
    private static final long NOW_MS = 1_700_000_000_000L;
    private static final Random RANDOM = new Random(405);

    /** One key-0 or key-3 record to be; `make` turns it into either. */
    private static final class Segment {
        String topic = "foo";
        int partition = 0;
        Uuid topicId = TOPIC_ID;
        Uuid segmentId = SEGMENT_ID;
        long start = 0;
        long end = 100;
        int broker = 1;
        long maxTimestampMs = -1;
        long eventTimestampMs = 123;
        int sizeBytes = 1024;
        byte[] custom = null;
        RemoteLogSegmentState state = RemoteLogSegmentState.COPY_SEGMENT_STARTED;
        Map<Integer, Long> epochs = epochs(0, 0, 1, 20, 2, 80);
        boolean txnIndexEmpty = false;

        RemoteLogSegmentMetadata make() {
            var id = new RemoteLogSegmentId(partition(topicId, topic, partition), segmentId);
            return new RemoteLogSegmentMetadata(id, start, end, maxTimestampMs, broker, eventTimestampMs,
                sizeBytes, Generate.custom(custom), state, epochs, txnIndexEmpty);
        }
    }

    private interface Edit {
        void to(Segment segment);
    }

    public static void main(String[] args) throws IOException {
        Path dir = Path.of(args[0]);
        try (var out = open(dir, "records.jsonl")) {
            segments(out);
            updates(out);
            deletes(out);
            randoms(out);
        }
        try (var out = open(dir, "tolerated.jsonl")) {
            tolerated(out);
        }
        try (var out = open(dir, "poison.jsonl")) {
            poison(out);
        }
        try (var out = open(dir, "partitions.jsonl")) {
            partitions(out);
        }
    }

    // ---- records.jsonl -------------------------------------------------------------------------

    private static void segments(PrintWriter out) {
        segment(out, "plain", s -> s.custom = bytes(0, 1, 2, 3));
        segment(out, "custom metadata null", s -> {});
        segment(out, "custom metadata empty", s -> s.custom = new byte[0]);
        for (int length : new int[] {1, 126, 127, 128, 16_382, 16_383}) {
            segment(out, "custom metadata of " + length + " bytes", s -> s.custom = counting(length));
        }
        segment(out, "txn index empty", s -> s.txnIndexEmpty = true);
        segment(out, "txn index empty, custom metadata empty", s -> {
            s.txnIndexEmpty = true;
            s.custom = new byte[0];
        });
        for (var state : RemoteLogSegmentState.values()) {
            segment(out, "state " + state, s -> s.state = state);
        }
        for (int count : new int[] {1, 126, 127, 128, 300}) {
            segment(out, count + " epochs", s -> s.epochs = manyEpochs(count));
        }
        segment(out, "epochs with gaps", s -> s.epochs = epochs(3, 0, 7, 1, 4_000, 99));
        segment(out, "epoch extremes", s -> s.epochs =
            epochs(Integer.MIN_VALUE, Long.MIN_VALUE, -1, -1, 0, 0, Integer.MAX_VALUE, Long.MAX_VALUE));
        segment(out, "largest values", s -> {
            s.partition = Integer.MAX_VALUE;
            s.start = Long.MAX_VALUE;
            s.end = Long.MAX_VALUE;
            s.broker = Integer.MAX_VALUE;
            s.maxTimestampMs = Long.MAX_VALUE;
            s.eventTimestampMs = Long.MAX_VALUE;
            s.sizeBytes = Integer.MAX_VALUE;
            s.topicId = new Uuid(-1, -1);
            s.segmentId = new Uuid(-1, -1);
        });
        segment(out, "smallest values that Kafka reads back", s -> {
            s.partition = Integer.MIN_VALUE;
            s.start = 0;
            s.end = 0;
            s.broker = Integer.MIN_VALUE;
            s.maxTimestampMs = Long.MIN_VALUE;
            s.eventTimestampMs = Long.MIN_VALUE;
            s.sizeBytes = Integer.MIN_VALUE;
            s.topicId = Uuid.ZERO_UUID;
            s.segmentId = Uuid.ZERO_UUID;
        });
        segment(out, "empty topic name", s -> s.topic = "");
        segment(out, "topic name of 126 bytes", s -> s.topic = "a".repeat(126));
        segment(out, "topic name of 127 bytes", s -> s.topic = "a".repeat(127));
        segment(out, "topic name of 249 characters", s -> s.topic = "orders.v1_".repeat(25).substring(0, 249));
        segment(out, "topic name in unicode", s -> s.topic = "größe-заказ-注文-\uD83D\uDE80");
        segment(out, "uuid text with minus and underscore", s -> {
            s.topicId = Uuid.fromString("--__--__--__--__--__-w");
            s.segmentId = Uuid.fromString("_-_-_-_-_-_-_-_-_-_-_g");
        });
        unsorted(out);
        snapshot(out, "snapshot plain", s -> s.custom = bytes(0, 1, 2, 3));
        snapshot(out, "snapshot custom metadata null", s -> {});
        snapshot(out, "snapshot custom metadata empty", s -> s.custom = new byte[0]);
        snapshot(out, "snapshot txn index empty, finished", s -> {
            s.txnIndexEmpty = true;
            s.state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED;
        });
        snapshot(out, "snapshot delete started", s -> s.state = RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
    }

    private static void segment(PrintWriter out, String name, Edit edit) {
        var segment = new Segment();
        edit.to(segment);
        record(out, name, segment.make());
    }

    private static void snapshot(PrintWriter out, String name, Edit edit) {
        var segment = new Segment();
        edit.to(segment);
        record(out, name, RemoteLogSegmentMetadataSnapshot.create(segment.make()));
    }

    /** `encode_from` is the JSON a user may hand to an encoder: same epochs, other order, same bytes. */
    private static void unsorted(PrintWriter out) {
        var segment = new Segment();
        segment.epochs = epochs(9, 90, 2, 20, 30, 95, 0, 0);
        byte[] value = SERDE.serialize(segment.make());
        ObjectNode line = line("epochs given unsorted", value);
        ObjectNode json = RecordJson.of(value);
        line.set("json", json);
        ObjectNode given = json.deepCopy();
        ArrayNode epochs = ((ObjectNode) given.get("data")).putArray("segmentLeaderEpochs");
        segment.epochs.forEach((epoch, offset) -> epochs.addObject().put("leaderEpoch", epoch).put("offset", offset));
        line.set("encode_from", given);
        out.println(line);
    }

    private static void updates(PrintWriter out) {
        for (var state : RemoteLogSegmentState.values()) {
            update(out, "update to " + state, "foo", null, state, 2, NOW_MS);
        }
        var finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED;
        update(out, "update custom metadata empty", "foo", new byte[0], finished, 2, NOW_MS);
        update(out, "update custom metadata of 200 zero bytes", "foo", new byte[200],
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED, -1, NOW_MS);
        update(out, "update largest values", "foo", bytes(255), finished, Integer.MAX_VALUE, Long.MAX_VALUE);
        update(out, "update smallest values", "foo", null, finished, Integer.MIN_VALUE, Long.MIN_VALUE);
        update(out, "update topic name of 249 characters", "a".repeat(249), null, finished, 0, 0);
        update(out, "update topic name in unicode", "日本語.topic", null, finished, 0, 0);
    }

    private static void update(PrintWriter out, String name, String topic, byte[] custom,
                               RemoteLogSegmentState state, int broker, long eventMs) {
        var id = new RemoteLogSegmentId(partition(TOPIC_ID, topic, 0), SEGMENT_ID);
        record(out, name, new RemoteLogSegmentMetadataUpdate(id, eventMs, custom(custom), state, broker));
    }

    private static void deletes(PrintWriter out) {
        for (var state : RemotePartitionDeleteState.values()) {
            delete(out, "partition " + state, "foo", 0, state, 3, NOW_MS);
        }
        var marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED;
        delete(out, "partition delete, topic name of 249 characters", "a".repeat(249), 0, marked, 3, NOW_MS);
        delete(out, "partition delete, largest values", "foo", Integer.MAX_VALUE, marked, Integer.MAX_VALUE, Long.MAX_VALUE);
        delete(out, "partition delete, smallest values", "foo", Integer.MIN_VALUE, marked, Integer.MIN_VALUE, Long.MIN_VALUE);
    }

    private static void delete(PrintWriter out, String name, String topic, int partition,
                               RemotePartitionDeleteState state, int broker, long eventMs) {
        record(out, name, new RemotePartitionDeleteMetadata(partition(TOPIC_ID, topic, partition), state, eventMs, broker));
    }

    private static void randoms(PrintWriter out) {
        for (int i = 0; i < 12; i++) {
            segment(out, "random " + i, s -> {
                s.topic = "topic-" + RANDOM.nextInt(100_000);
                s.partition = RANDOM.nextInt(1_000);
                s.topicId = uuid();
                s.segmentId = uuid();
                s.start = RANDOM.nextLong() >>> 2;
                s.end = s.start + RANDOM.nextInt(1_000_000);
                s.broker = RANDOM.nextInt(1_000);
                s.maxTimestampMs = NOW_MS + RANDOM.nextInt();
                s.eventTimestampMs = NOW_MS + RANDOM.nextInt();
                s.sizeBytes = RANDOM.nextInt(1 << 30);
                s.custom = RANDOM.nextBoolean() ? counting(RANDOM.nextInt(40)) : null;
                s.epochs = manyEpochs(1 + RANDOM.nextInt(5));
                s.txnIndexEmpty = RANDOM.nextBoolean();
            });
        }
    }

    /** Keeps a record only if Kafka reads its own bytes back to an equal object. */
    private static void record(PrintWriter out, String name, RemoteLogMetadata metadata) {
        byte[] value = SERDE.serialize(metadata);
        if (!SERDE.deserialize(value).equals(metadata)) {
            throw new IllegalStateException("no round trip: " + name);
        }
        ObjectNode line = line(name, value);
        line.set("json", RecordJson.of(value));
        out.println(line);
    }

    // ---- tolerated.jsonl: bytes that Kafka reads though it would not write them ----------------

    private static void tolerated(PrintWriter out) {
        String plain = hex(new Segment().make());
        String tail = "0000"; // state STARTED, no tags
        String head = plain.substring(0, plain.length() - tail.length());
        String update = hex(finishedUpdate());
        tolerate(out, "frame version as a two byte varint", "8100" + plain.substring(2));
        tolerate(out, "frame version as a five byte varint", "8180808000" + plain.substring(2));
        tolerate(out, "topic name length as a two byte varint", plain.substring(0, 6) + "8400" + plain.substring(8));
        tolerate(out, "unknown tag 7 at the end", head + "00" + "01" + "0702beef");
        tolerate(out, "txn index empty and the unknown tags 1 and 2", head + "00" + "03" + "000101" + "010400000007" + "0200");
        tolerate(out, "txn index empty written as false", head + "00" + "01" + "000100");
        tolerate(out, "txn index empty written as 02", head + "00" + "01" + "000102");
        tolerate(out, "txn index empty tag twice", head + "00" + "02" + "000101" + "000100");
        tolerate(out, "unknown tag in an update", update.substring(0, update.length() - 2) + "01" + "0503616263");
        tolerate(out, "unknown tag inside the topic partition", update.substring(0, 54) + "01" + "0301ff" + update.substring(56));
        tolerate(out, "epochs out of order", withEpochs(plain, 2, 80, 0, 0, 1, 20));
        tolerate(out, "an epoch twice, the last one wins", withEpochs(plain, 0, 0, 1, 20, 1, 30));
    }

    private static void tolerate(PrintWriter out, String name, String hex) {
        byte[] value = RecordJson.HEX.parseHex(hex);
        byte[] canonical = SERDE.serialize(SERDE.deserialize(value));
        ObjectNode line = line(name, value);
        line.put("canonical_hex", RecordJson.HEX.formatHex(canonical));
        line.set("json", RecordJson.of(canonical));
        out.println(line);
    }

    /** `plain` has exactly three epochs, so any other three fit in their place. */
    private static String withEpochs(String plain, long... pairs) {
        int at = plain.indexOf("04" + "0000000000000000000000000000000001") / 2;
        var value = ByteBuffer.wrap(RecordJson.HEX.parseHex(plain));
        for (int i = 0; i < pairs.length; i += 2) {
            value.putInt(at + 1 + i / 2 * 13, (int) pairs[i]).putLong(at + 5 + i / 2 * 13, pairs[i + 1]);
        }
        return RecordJson.HEX.formatHex(value.array());
    }

    // ---- poison.jsonl: bytes that Kafka refuses ------------------------------------------------

    private static void poison(PrintWriter out) {
        String plain = hex(new Segment().make());
        String update = hex(finishedUpdate());
        String delete = hex(new RemotePartitionDeleteMetadata(partition(TOPIC_ID, "foo", 0),
            RemotePartitionDeleteState.DELETE_PARTITION_MARKED, NOW_MS, 3));
        String snapshot = hex(RemoteLogSegmentMetadataSnapshot.create(new Segment().make()));
        refuse(out, "null value", null);
        refuse(out, "zero length value", "");
        refuse(out, "frame version 0", "00" + plain.substring(2));
        refuse(out, "frame version 2", "02" + plain.substring(2));
        refuse(out, "frame version above int16", "ffff07");
        refuse(out, "frame version varint without an end", "ffffffffffff");
        refuse(out, "frame version only", "01");
        refuse(out, "frame version and api key only", "0100");
        refuse(out, "envelope only", "010000");
        refuse(out, "api key 4", "0104" + plain.substring(4));
        refuse(out, "api key 99", "0163" + plain.substring(4));
        refuse(out, "segment record of version 1", "010001" + plain.substring(6));
        refuse(out, "update record of version 1", "010101" + update.substring(6));
        refuse(out, "delete record of version 1", "010201" + delete.substring(6));
        refuse(out, "snapshot record of version 1", "010301" + snapshot.substring(6));
        for (int cut : new int[] {1, 2, 20, 60, 100}) {
            refuse(out, "segment record short of " + cut + " bytes", plain.substring(0, plain.length() - 2 * cut));
        }
        refuse(out, "update record short of 1 byte", update.substring(0, update.length() - 2));
        refuse(out, "delete record short of 1 byte", delete.substring(0, delete.length() - 2));
        refuse(out, "snapshot record short of 1 byte", snapshot.substring(0, snapshot.length() - 2));
        refuse(out, "one trailing byte", plain + "00");
        refuse(out, "three trailing bytes", update + "c0ffee");
        refuse(out, "unknown segment state 4", plain.substring(0, plain.length() - 4) + "0400");
        refuse(out, "unknown segment state -1", update.substring(0, update.length() - 4) + "ff00");
        refuse(out, "unknown partition state 3", delete.substring(0, delete.length() - 4) + "0300");
        refuse(out, "start offset -1", plain.substring(0, 90) + "ff".repeat(8) + plain.substring(106));
        refuse(out, "end offset before start offset", plain.substring(0, 90) + "0000000000000065" + plain.substring(106));
        refuse(out, "no leader epochs", plain.substring(0, 162) + "01" + plain.substring(162 + 2 + 3 * 26));
        refuse(out, "leader epochs null", plain.substring(0, 162) + "00" + plain.substring(162 + 2 + 3 * 26));
        refuse(out, "leader epochs claim 268435455 entries", plain.substring(0, 162) + "ffffff7f" + plain.substring(164));
        refuse(out, "topic name null", plain.substring(0, 6) + "00" + plain.substring(14));
        refuse(out, "topic name of 32768 bytes", plain.substring(0, 6) + "818002" + "61".repeat(32_768) + plain.substring(14));
        refuse(out, "topic name longer than the record", plain.substring(0, 6) + "ff7f" + plain.substring(8));
        refuse(out, "custom metadata longer than the record", plain.substring(0, plain.length() - 6) + "ff7f" + "0000");
        refuse(out, "tag section cut short", plain.substring(0, plain.length() - 2) + "01" + "0710ff");
        refuse(out, "txn index empty tag with size 2", plain.substring(0, plain.length() - 2) + "01" + "00020101");
        refuse(out, "text instead of a record", RecordJson.HEX.formatHex("{\"state\":1}".getBytes(StandardCharsets.UTF_8)));
    }

    private static void refuse(PrintWriter out, String name, String hex) {
        ObjectNode line = RecordJson.MAPPER.createObjectNode().put("name", name).put("hex", hex);
        try {
            SERDE.deserialize(hex == null ? null : RecordJson.HEX.parseHex(hex));
        } catch (RuntimeException error) {
            line.put("kafka_error", text(error));
            line.put("kafka_cause", error.getCause() == null ? null : text(error.getCause()));
            out.println(line);
            return;
        }
        throw new IllegalStateException("Kafka reads it: " + name);
    }

    private static String text(Throwable error) {
        return error.getClass().getSimpleName() + ": " + error.getMessage();
    }

    // ---- partitions.jsonl ----------------------------------------------------------------------

    private static void partitions(PrintWriter out) {
        for (String id : new String[] {"AAAAAAAAAAAAAAAAAAAAAA", "Bp9TDduJRGa9Q5rlvCJOxg", "AQIDBAUGBwgJCgsMDQ4PEA"}) {
            for (int partition : new int[] {0, 1, 2, 3, 7, 49, 1000, Integer.MAX_VALUE, -1}) {
                partitionLine(out, Uuid.fromString(id), partition);
            }
        }
        partitionLine(out, new Uuid(-1, -1), 0);
        partitionLine(out, new Uuid(Long.MIN_VALUE, Long.MAX_VALUE), 0);
        for (int i = 0; i < 171; i++) {
            partitionLine(out, uuid(), i % 4 == 0 ? RANDOM.nextInt(1 << 20) : RANDOM.nextInt(100));
        }
    }

    private static void partitionLine(PrintWriter out, Uuid topicId, int partition) {
        ObjectNode line = RecordJson.MAPPER.createObjectNode();
        line.put("topic_id", topicId.toString()).put("partition", partition);
        ObjectNode counts = line.putObject("metadata_partition");
        for (int count : new int[] {1, 5, 50, 97}) {
            // The name is another one each time: it must not count.
            var user = partition(topicId, "name" + count, partition);
            counts.put(Integer.toString(count), new RemoteLogMetadataTopicPartitioner(count).metadataPartition(user));
        }
        out.println(line);
    }

    // ---- small parts ---------------------------------------------------------------------------

    private static PrintWriter open(Path dir, String name) throws IOException {
        return new PrintWriter(Files.newBufferedWriter(dir.resolve(name)));
    }

    private static ObjectNode line(String name, byte[] value) {
        return RecordJson.MAPPER.createObjectNode().put("name", name).put("hex", RecordJson.HEX.formatHex(value));
    }

    private static String hex(RemoteLogMetadata metadata) {
        return RecordJson.HEX.formatHex(SERDE.serialize(metadata));
    }

    private static RemoteLogSegmentMetadataUpdate finishedUpdate() {
        return new RemoteLogSegmentMetadataUpdate(new RemoteLogSegmentId(partition(TOPIC_ID, "foo", 0), SEGMENT_ID),
            NOW_MS, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 2);
    }

    private static TopicIdPartition partition(Uuid topicId, String topic, int partition) {
        return new TopicIdPartition(topicId, new TopicPartition(topic, partition));
    }

    private static Optional<CustomMetadata> custom(byte[] value) {
        return Optional.ofNullable(value).map(CustomMetadata::new);
    }

    private static Map<Integer, Long> epochs(long... pairs) {
        var map = new LinkedHashMap<Integer, Long>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((int) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    private static Map<Integer, Long> manyEpochs(int count) {
        var map = new LinkedHashMap<Integer, Long>();
        IntStream.range(0, count).forEach(i -> map.put(i, (long) i * 10));
        return map;
    }

    private static byte[] bytes(int... values) {
        byte[] out = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            out[i] = (byte) values[i];
        }
        return out;
    }

    private static byte[] counting(int length) {
        return bytes(IntStream.range(0, length).toArray());
    }

    private static Uuid uuid() {
        return new Uuid(RANDOM.nextLong(), RANDOM.nextLong());
    }
}
