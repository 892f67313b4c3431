package rlmm.daemon.kafka;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.msgpack.core.MessageTypeException;
import org.msgpack.value.Value;

/** Metadata as Kafka's own record bytes. Safe for any thread. */
final class Records {
    /** Loads the classes that the first record needs. */
    static void prepare() {
        RecordCodec.encode(new RemotePartitionDeleteMetadata(new TopicIdPartition(Uuid.ZERO_UUID, 0, "-"),
            RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 0, 0));
    }

    /** Reads the parts of an answer. */
    @FunctionalInterface
    interface Reading<T> {
        T read() throws RemoteStorageException;
    }

    /** An answer of another shape than was asked for ends like one that failed, not with a class of a library. */
    static <T> T read(Reading<T> reading) throws RemoteStorageException {
        try {
            return reading.read();
        } catch (MessageTypeException | IndexOutOfBoundsException broken) {
            throw new RemoteStorageException("the daemon answered something else than was asked for", broken);
        }
    }

    byte[] encode(RemoteLogMetadata metadata) {
        return RecordCodec.encode(metadata);
    }

    /** A look-up's answer: nil is nothing found. */
    Optional<RemoteLogSegmentMetadata> maybe(Value value) throws RemoteStorageException {
        return value.isNilValue() ? Optional.empty() : Optional.of(decode(value));
    }

    /** A segment, and the last offset for which the daemon would name the same one; below any where it did not say. */
    record FoundUntil(RemoteLogSegmentMetadata segment, long until) { }

    /** Likewise of a look-up that asks how far its answer goes; null is nothing found. An earlier daemon does not say. */
    FoundUntil maybeUntil(Value value) throws RemoteStorageException {
        if (!value.isArrayValue()) {
            Optional<RemoteLogSegmentMetadata> found = maybe(value);
            return found.isEmpty() ? null : new FoundUntil(found.get(), -1);
        }
        return read(() -> new FoundUntil(
            decode(value.asArrayValue().get(0)), value.asArrayValue().get(1).asIntegerValue().asLong()));
    }

    /** All records of a listing, decoded now so that iterating cannot fail. */
    Iterator<RemoteLogSegmentMetadata> all(List<Value> pages) throws RemoteStorageException {
        return read(() -> {
            List<RemoteLogSegmentMetadata> found = new ArrayList<>();
            for (Value page : pages) {
                for (Value record : page.asArrayValue().get(0).asArrayValue()) {
                    found.add(decode(record));
                }
            }
            return found.iterator();
        });
    }

    private RemoteLogSegmentMetadata decode(Value value) throws RemoteStorageException {
        try {
            return RecordCodec.decode(value.asBinaryValue().asByteArray());
        } catch (IllegalArgumentException | MessageTypeException broken) { // also of a segment that its class refuses
            throw new RemoteStorageException(
                "the daemon sent a record that this plugin cannot read: " + broken.getMessage(), broken);
        }
    }
}
