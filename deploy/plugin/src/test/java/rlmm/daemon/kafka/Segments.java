package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.Random;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/** Segments as a broker has them: files of real batches, and the metadata that goes with them. */
final class Segments {
    static final int EPOCH = 3;
    static final TopicIdPartition ORDERS = partition("orders", 0);
    private static final int VALUE_BYTES = 64 * 1024;

    private Segments() { }

    static TopicIdPartition partition(String topic, int number) {
        return new TopicIdPartition(new Uuid(topic.hashCode(), 77), new TopicPartition(topic, number));
    }

    /** Said to have a transaction index, and begun now: a copy that began long ago is ended as a stuck one. */
    static RemoteLogSegmentMetadata started(TopicIdPartition partition, long start, long end, int size) {
        return started(partition, start, end, size, false);
    }

    static RemoteLogSegmentMetadata started(
            TopicIdPartition partition, long start, long end, int size, boolean txnIndexEmpty) {
        return new RemoteLogSegmentMetadata(new RemoteLogSegmentId(partition, Uuid.randomUuid()), start, end, 1_000,
            DaemonProcess.BROKER_ID, System.currentTimeMillis(), size, Map.of(EPOCH, start), txnIndexEmpty);
    }

    static RemoteLogSegmentMetadataUpdate update(
            RemoteLogSegmentMetadata of, Optional<RemoteLogSegmentMetadata.CustomMetadata> custom,
            RemoteLogSegmentState state) {
        return new RemoteLogSegmentMetadataUpdate(
            of.remoteLogSegmentId(), System.currentTimeMillis(), custom, state, DaemonProcess.BROKER_ID);
    }

    /** A segment on the broker's disk. */
    record OnDisk(RemoteLogSegmentMetadata metadata, LogSegmentData data, byte[] log) { }

    /** Writes a segment of so many records of 64 KiB each, one per batch, without a transaction index. */
    static OnDisk write(Path logDir, TopicIdPartition partition, long start, int records) throws IOException {
        ByteBuffer all = ByteBuffer.allocate(records * (VALUE_BYTES + 200));
        byte[] value = new byte[VALUE_BYTES];
        for (int i = 0; i < records; i++) {
            new Random(start + i).nextBytes(value);
            all.put(MemoryRecords.withRecords(
                start + i, Compression.NONE, EPOCH, new SimpleRecord(1_000, value)).buffer());
        }
        byte[] log = Arrays.copyOf(all.array(), all.position());
        Path directory = Files.createDirectories(
            logDir.resolve(partition.topic() + "-" + partition.partition()));
        Path stem = directory.resolve(String.format("%020d", start));
        Path file = Files.write(Path.of(stem + ".log"), log);
        Path index = Files.write(Path.of(stem + ".index"), new byte[]{0, 0, 0, 0, 0, 0, 0, 0});
        Path times = Files.write(Path.of(stem + ".timeindex"), new byte[12]);
        Path snapshot = Files.write(Path.of(stem + ".snapshot"), "producers".getBytes(StandardCharsets.UTF_8));
        ByteBuffer epochs = ByteBuffer.wrap(("0\n1\n" + EPOCH + " " + start + "\n").getBytes(StandardCharsets.UTF_8));
        return new OnDisk(started(partition, start, start + records - 1, log.length, true),
            new LogSegmentData(file, index, times, Optional.empty(), snapshot, epochs), log);
    }
}
