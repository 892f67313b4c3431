package rlmm.daemon.kafka;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.msgpack.core.MessageTypeException;
import org.msgpack.value.Value;

/** Metadata as Kafka's own record bytes, by the serde of the broker that this runs in. Safe for any thread. */
final class Records {
    /** Some fifty classes, of which nothing is needed before the first record. */
    private static final class Kafkas {
        static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();
    }

    /** Makes ready what the first record needs. */
    static void prepare() {
        Objects.requireNonNull(Kafkas.SERDE);
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
        return Kafkas.SERDE.serialize(metadata);
    }

    /** A look-up's answer: nil is nothing found. */
    Optional<RemoteLogSegmentMetadata> maybe(Value value) throws RemoteStorageException {
        return value.isNilValue() ? Optional.empty() : Optional.of(decode(value));
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
            return (RemoteLogSegmentMetadata) Kafkas.SERDE.deserialize(value.asBinaryValue().asByteArray());
        } catch (RuntimeException broken) { // of many classes, NullPointerException for a state unknown to the serde
            throw new RemoteStorageException("the daemon sent a record that this broker cannot read", broken);
        }
    }
}
