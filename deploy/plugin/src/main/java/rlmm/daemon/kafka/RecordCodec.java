package rlmm.daemon.kafka;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;

/**
 * Kafka's form of a record of {@code __remote_log_metadata}: three numbers that say what it is, then the fields of one
 * of three messages, each structure ended by its tagged fields. Written in version 0, in which the daemon answers.
 *
 * <p>Kafka has this in a package of its own manager, which it may change at any time; the SPI's classes, which this
 * makes, it may not. Tests hold it byte for byte against Kafka's, of the oldest and the newest release.
 */
final class RecordCodec {
    private static final int FRAME = 1;
    private static final int SEGMENT = 0;
    private static final int UPDATE = 1;
    private static final int PARTITION_DELETE = 2;
    private static final int VERSION = 0;
    private static final int TXN_INDEX_EMPTY = 0;

    private RecordCodec() { }

    // --- writing

    /** A segment, an update or a step of a partition's removal. */
    static byte[] encode(RemoteLogMetadata metadata) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(256);
        DataOutputStream out = new DataOutputStream(bytes);
        try {
            if (metadata instanceof RemoteLogSegmentMetadata segment) {
                write(out, segment);
            } else if (metadata instanceof RemoteLogSegmentMetadataUpdate update) {
                write(out, update);
            } else if (metadata instanceof RemotePartitionDeleteMetadata delete) {
                write(out, delete);
            } else {
                throw new IllegalArgumentException("no record of Kafka's is a " + metadata.getClass().getName());
            }
        } catch (IOException impossible) { // it writes to memory
            throw new UncheckedIOException(impossible);
        }
        return bytes.toByteArray();
    }

    private static void write(DataOutputStream out, RemoteLogSegmentMetadata segment) throws IOException {
        begin(out, SEGMENT);
        write(out, segment.remoteLogSegmentId());
        out.writeLong(segment.startOffset());
        out.writeLong(segment.endOffset());
        out.writeInt(segment.brokerId());
        out.writeLong(segment.maxTimestampMs());
        out.writeLong(segment.eventTimestampMs());
        writeNumber(out, segment.segmentLeaderEpochs().size() + 1);
        for (Map.Entry<Integer, Long> epoch : segment.segmentLeaderEpochs().entrySet()) {
            out.writeInt(epoch.getKey());
            out.writeLong(epoch.getValue());
            writeNoTags(out);
        }
        out.writeInt(segment.segmentSizeInBytes());
        write(out, segment.customMetadata());
        out.writeByte(segment.state().id());
        if (segment.isTxnIdxEmpty()) { // false is what its absence means
            writeNumber(out, 1);
            writeNumber(out, TXN_INDEX_EMPTY);
            writeNumber(out, 1);
            out.writeByte(1);
        } else {
            writeNoTags(out);
        }
    }

    private static void write(DataOutputStream out, RemoteLogSegmentMetadataUpdate update) throws IOException {
        begin(out, UPDATE);
        write(out, update.remoteLogSegmentId());
        out.writeInt(update.brokerId());
        out.writeLong(update.eventTimestampMs());
        write(out, update.customMetadata());
        out.writeByte(update.state().id());
        writeNoTags(out);
    }

    private static void write(DataOutputStream out, RemotePartitionDeleteMetadata delete) throws IOException {
        begin(out, PARTITION_DELETE);
        write(out, delete.topicIdPartition());
        out.writeInt(delete.brokerId());
        out.writeLong(delete.eventTimestampMs());
        out.writeByte(delete.state().id());
        writeNoTags(out);
    }

    private static void begin(DataOutputStream out, int kind) throws IOException {
        writeNumber(out, FRAME);
        writeNumber(out, kind);
        writeNumber(out, VERSION);
    }

    private static void write(DataOutputStream out, RemoteLogSegmentId id) throws IOException {
        write(out, id.topicIdPartition());
        write(out, id.id());
        writeNoTags(out);
    }

    private static void write(DataOutputStream out, TopicIdPartition partition) throws IOException {
        byte[] name = partition.topic().getBytes(StandardCharsets.UTF_8);
        writeNumber(out, name.length + 1);
        out.write(name);
        write(out, partition.topicId());
        out.writeInt(partition.partition());
        writeNoTags(out);
    }

    private static void write(DataOutputStream out, Uuid id) throws IOException {
        out.writeLong(id.getMostSignificantBits());
        out.writeLong(id.getLeastSignificantBits());
    }

    private static void write(DataOutputStream out, Optional<CustomMetadata> custom) throws IOException {
        writeNumber(out, custom.isPresent() ? custom.get().value().length + 1 : 0);
        if (custom.isPresent()) {
            out.write(custom.get().value());
        }
    }

    private static void writeNoTags(DataOutputStream out) throws IOException {
        writeNumber(out, 0);
    }

    /** Seven bits in each byte, the lowest first. */
    private static void writeNumber(DataOutputStream out, int number) throws IOException {
        int rest = number;
        while ((rest & ~0x7f) != 0) {
            out.writeByte(rest & 0x7f | 0x80);
            rest >>>= 7;
        }
        out.writeByte(rest);
    }

    // --- reading

    /**
     * A segment.
     *
     * @throws IllegalArgumentException these bytes are none, or of a version that is not known here
     */
    static RemoteLogSegmentMetadata decode(byte[] record) {
        try {
            ByteBuffer in = ByteBuffer.wrap(record);
            require(in, FRAME, "a frame of version");
            require(in, SEGMENT, "a record of kind");
            require(in, VERSION, "a segment of version");
            RemoteLogSegmentMetadata segment = readSegment(in);
            if (in.hasRemaining()) {
                throw new IllegalArgumentException(in.remaining() + " bytes too many");
            }
            return segment;
        } catch (BufferUnderflowException cut) {
            throw new IllegalArgumentException("it ends too early", cut);
        }
    }

    private static void require(ByteBuffer in, int known, String what) {
        int found = readNumber(in);
        if (found != known) {
            throw new IllegalArgumentException(what + " " + found + ", and " + known + " is known");
        }
    }

    private static RemoteLogSegmentMetadata readSegment(ByteBuffer in) {
        RemoteLogSegmentId id = readSegmentId(in);
        long startOffset = in.getLong();
        long endOffset = in.getLong();
        int brokerId = in.getInt();
        long maxTimestampMs = in.getLong();
        long eventTimestampMs = in.getLong();
        NavigableMap<Integer, Long> epochs = readEpochs(in);
        int size = in.getInt();
        Optional<CustomMetadata> custom = readCustomMetadata(in);
        RemoteLogSegmentState state = readState(in);
        return new RemoteLogSegmentMetadata(id, startOffset, endOffset, maxTimestampMs, brokerId, eventTimestampMs, size,
            custom, state, epochs, readTxnIndexEmpty(in));
    }

    private static RemoteLogSegmentId readSegmentId(ByteBuffer in) {
        String name = new String(readBytes(in, readNumber(in) - 1), StandardCharsets.UTF_8);
        Uuid topicId = readUuid(in);
        int partition = in.getInt();
        skipTags(in);
        Uuid id = readUuid(in);
        skipTags(in);
        return new RemoteLogSegmentId(new TopicIdPartition(topicId, new TopicPartition(name, partition)), id);
    }

    private static NavigableMap<Integer, Long> readEpochs(ByteBuffer in) {
        NavigableMap<Integer, Long> epochs = new TreeMap<>();
        for (int left = readNumber(in) - 1; left > 0; left--) {
            epochs.put(in.getInt(), in.getLong());
            skipTags(in);
        }
        return epochs;
    }

    private static Optional<CustomMetadata> readCustomMetadata(ByteBuffer in) {
        int size = readNumber(in) - 1;
        return size < 0 ? Optional.empty() : Optional.of(new CustomMetadata(readBytes(in, size)));
    }

    private static RemoteLogSegmentState readState(ByteBuffer in) {
        byte id = in.get();
        RemoteLogSegmentState state = RemoteLogSegmentState.forId(id);
        if (state == null) {
            throw new IllegalArgumentException("a state " + id + " that is not known");
        }
        return state;
    }

    private static boolean readTxnIndexEmpty(ByteBuffer in) {
        boolean empty = false;
        for (int left = readNumber(in); left > 0; left--) {
            int tag = readNumber(in);
            byte[] value = readBytes(in, readNumber(in));
            if (tag == TXN_INDEX_EMPTY) {
                empty = value.length == 1 && value[0] != 0;
            }
        }
        return empty;
    }

    /** Of a later version, which means nothing here. */
    private static void skipTags(ByteBuffer in) {
        for (int left = readNumber(in); left > 0; left--) {
            readNumber(in);
            readBytes(in, readNumber(in));
        }
    }

    private static Uuid readUuid(ByteBuffer in) {
        return new Uuid(in.getLong(), in.getLong());
    }

    /** What was announced is made room for only if it is there. */
    private static byte[] readBytes(ByteBuffer in, int count) {
        if (count < 0 || count > in.remaining()) {
            throw new BufferUnderflowException();
        }
        byte[] bytes = new byte[count];
        in.get(bytes);
        return bytes;
    }

    private static int readNumber(ByteBuffer in) {
        int number = 0;
        for (int shift = 0; shift < 32; shift += 7) {
            byte next = in.get();
            number |= (next & 0x7f) << shift;
            if (next >= 0) {
                return number;
            }
        }
        throw new IllegalArgumentException("a number of more than five bytes");
    }
}
