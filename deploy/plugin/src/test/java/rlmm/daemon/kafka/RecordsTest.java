package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.List;
import java.util.Optional;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.msgpack.value.Value;
import org.msgpack.value.ValueFactory;

/** What comes of records that this broker can read, and of those that it can't. */
final class RecordsTest {
    private final Records records = new Records();
    private final RemoteLogSegmentMetadata segment = Segments.started(Segments.ORDERS, 0, 9, 1);

    private static Value page(byte[]... each) {
        Value[] binaries = Arrays.stream(each).map(ValueFactory::newBinary).toArray(Value[]::new);
        return ValueFactory.newArray(ValueFactory.newArray(binaries), ValueFactory.newBoolean(false));
    }

    @Test
    void nothingIsNil() throws Exception {
        assertEquals(Optional.empty(), records.maybe(ValueFactory.newNil()));
        assertFalse(records.all(List.of(page())).hasNext());
    }

    @ParameterizedTest
    @ValueSource(strings = {"cut", "unknown key", "unknown version", "unknown state", "no record at all", "an update"})
    void oneBadRecordFailsTheListingWhenItIsAskedForAndNotWhileIterating(String how) {
        byte[] good = records.encode(segment);
        byte[] bad = good.clone();
        switch (how) {
            case "cut" -> bad = Arrays.copyOf(good, good.length - 5);
            case "unknown key" -> bad[1] = 99;
            case "unknown version" -> bad[2] = 9;
            case "unknown state" -> bad[bad.length - 2] = 77;
            case "no record at all" -> bad = new byte[0];
            default -> bad = records.encode(Segments.update(
                segment, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED));
        }
        Value page = page(good, bad);
        assertThrows(RemoteStorageException.class, () -> records.all(List.of(page)));
    }
}
