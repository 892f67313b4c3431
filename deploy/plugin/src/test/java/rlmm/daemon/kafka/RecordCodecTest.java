package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.junit.jupiter.api.Test;

/** The codec beside Kafka's own, of the release that this is built with and of the oldest that is supported. */
final class RecordCodecTest {
    private static final String SERDE = RemoteLogMetadataSerde.class.getName();
    private final RemoteLogMetadataSerde kafkas = new RemoteLogMetadataSerde();

    private static TopicIdPartition partition(Random random) {
        String name = "tö".repeat(random.nextInt(80)) + "x";
        return new TopicIdPartition(new Uuid(random.nextLong(), random.nextLong()), new TopicPartition(name, random.nextInt()));
    }

    private static Optional<CustomMetadata> custom(Random random) {
        if (random.nextBoolean()) {
            return Optional.empty();
        }
        byte[] value = new byte[random.nextInt(300)];
        random.nextBytes(value);
        return Optional.of(new CustomMetadata(value));
    }

    private static <T> T one(Random random, T[] of) {
        return of[random.nextInt(of.length)];
    }

    private static RemoteLogSegmentMetadata segment(Random random) {
        Map<Integer, Long> epochs = new TreeMap<>();
        for (int left = random.nextInt(200); left >= 0; left--) {
            epochs.put(random.nextInt(1_000_000), random.nextLong());
        }
        long start = random.nextLong() >>> 2;
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(partition(random), new Uuid(random.nextLong(), random.nextLong())), start,
            start + random.nextInt(1_000), random.nextLong(), random.nextInt(), random.nextLong(),
            random.nextInt(Integer.MAX_VALUE), custom(random), one(random, RemoteLogSegmentState.values()), epochs,
            random.nextBoolean());
    }

    private static RemoteLogMetadata some(Random random) {
        return switch (random.nextInt(3)) {
            case 0 -> segment(random);
            case 1 -> new RemoteLogSegmentMetadataUpdate(
                new RemoteLogSegmentId(partition(random), Uuid.randomUuid()), random.nextLong(), custom(random),
                one(random, RemoteLogSegmentState.values()), random.nextInt());
            default -> new RemotePartitionDeleteMetadata(partition(random),
                one(random, RemotePartitionDeleteState.values()), random.nextLong(), random.nextInt());
        };
    }

    @Test
    void everyRecordIsByteForByteKafkas() {
        Random random = new Random(17);
        for (int i = 0; i < 2_000; i++) {
            RemoteLogMetadata metadata = some(random);
            assertArrayEquals(kafkas.serialize(metadata), RecordCodec.encode(metadata), metadata.toString());
        }
    }

    @Test
    void everySegmentOfKafkasIsReadAsKafkaReadsIt() {
        Random random = new Random(18);
        for (int i = 0; i < 2_000; i++) {
            RemoteLogSegmentMetadata segment = segment(random);
            byte[] record = kafkas.serialize(segment);
            assertEquals(kafkas.deserialize(record), RecordCodec.decode(record));
            assertEquals(segment, RecordCodec.decode(record));
        }
    }

    /** Bytes, since its classes are others than ours. */
    @Test
    void theOldestReleaseReadsWhatIsWrittenAndWritesTheSame() throws Exception {
        List<URL> path = new ArrayList<>();
        for (File jar : new File(System.getProperty("kafka.oldest")).listFiles()) {
            path.add(jar.toURI().toURL());
        }
        path.add(com.fasterxml.jackson.databind.JsonNode.class.getProtectionDomain().getCodeSource().getLocation());
        path.add(org.slf4j.Logger.class.getProtectionDomain().getCodeSource().getLocation());
        try (URLClassLoader old = new URLClassLoader(path.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            Class<?> serde = old.loadClass(SERDE);
            Object kafkas = serde.getConstructor().newInstance();
            var read = serde.getMethod("deserialize", byte[].class);
            var write = serde.getMethod("serialize", old.loadClass(RemoteLogMetadata.class.getName()));
            Random random = new Random(19);
            for (int i = 0; i < 500; i++) {
                byte[] record = RecordCodec.encode(some(random));
                assertArrayEquals(record, (byte[]) write.invoke(kafkas, read.invoke(kafkas, record)));
            }
        }
    }

    @Test
    void aSegmentThatSomebodyCutOrChangedIsRefusedOrAnotherSegmentAndNothingElse() {
        Random random = new Random(20);
        for (int i = 0; i < 300; i++) {
            byte[] record = RecordCodec.encode(segment(random));
            for (int cut = 0; cut < record.length; cut += 1 + record.length / 50) {
                byte[] bytes = Arrays.copyOf(record, cut);
                assertThrows(IllegalArgumentException.class, () -> RecordCodec.decode(bytes));
            }
            byte[] changed = record.clone();
            changed[random.nextInt(changed.length)] ^= (byte) (1 << random.nextInt(8));
            try {
                RecordCodec.decode(changed);
            } catch (IllegalArgumentException refused) {
                assertTrue(refused.getMessage() != null);
            }
        }
    }

    @Test
    void fieldsOfALaterVersionAreNotMinded() {
        RemoteLogSegmentMetadata segment = Segments.started(Segments.ORDERS, 0, 9, 1, true);
        byte[] record = RecordCodec.encode(segment);
        byte[] more = ByteBuffer.allocate(record.length + 5).put(record, 0, record.length - 4)
            .put(HexFormat.of().parseHex("02" + "000101" + "0703aabbcc")).array();
        assertEquals(segment, RecordCodec.decode(more));
        byte[] later = record.clone();
        later[2] = 1;
        String why = assertThrows(IllegalArgumentException.class, () -> RecordCodec.decode(later)).getMessage();
        assertTrue(why.contains("version 1"), why);
    }
}
