package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

final class ErrorsTest {
    private static DaemonException answered(int code) {
        return DaemonException.answered(code, "name", "message", Map.of());
    }

    @ParameterizedTest
    @CsvSource({
        "100, IllegalArgumentException", "101, RemoteStorageException", "102, RemoteResourceNotFoundException",
        "103, RemoteResourceNotFoundException", "104, RemoteStorageException", "105, RemoteStorageException",
        "106, RemoteStorageException", "107, RemoteStorageException", "108, RemoteStorageException",
        "109, RemoteStorageException", "110, RemoteStorageException", "199, RemoteStorageException",
        "200, ReplicaNotAvailableException", "201, ReplicaNotAvailableException", "202, ReplicaNotAvailableException",
        "203, ReplicaNotAvailableException", "204, ReplicaNotAvailableException", "205, ReplicaNotAvailableException",
        "206, ReplicaNotAvailableException", "207, ReplicaNotAvailableException", "299, ReplicaNotAvailableException", "0, ReplicaNotAvailableException",
        "300, RemoteStorageException", "301, RemoteStorageException", "302, RemoteStorageException",
        "303, RemoteStorageException", "304, RemoteStorageException", "399, RemoteStorageException"})
    void eachCodeOfTheTableHasItsClass(int code, String expected) {
        assertEquals(expected, Errors.ofMetadata(answered(code)).getClass().getSimpleName());
    }

    @Test
    void aDaemonThatIsAwayIsRetriableAndNeverEmpty() {
        for (DaemonException error : new DaemonException[]{
            DaemonException.disconnected("gone"), DaemonException.silent("m", 5), DaemonException.interrupted("m"),
            DaemonException.overloaded("full"), DaemonException.garbled("what")}) {
            assertTrue(Errors.ofMetadata(error) instanceof RetriableException, error.getMessage());
            assertTrue(Errors.ofFetch(error, true) instanceof ReplicaNotAvailableException, error.getMessage());
        }
    }

    @Test
    void onlyARecordedAbsenceOfTheTransactionIndexReadsAsNone() {
        assertTrue(Errors.ofFetch(answered(111), true) instanceof RemoteResourceNotFoundException);
        for (int code : new int[]{102, 103, 200, 203, 304, 303}) {
            assertFalse(Errors.ofFetch(answered(code), true) instanceof RemoteResourceNotFoundException, "" + code);
        }
        assertTrue(Errors.ofFetch(answered(102), false) instanceof RemoteResourceNotFoundException);
    }

    @ParameterizedTest
    @ValueSource(ints = {100, 101, 106, 110, 200, 201, 202, 203, 204, 205, 206, 300, 303, 0})
    void aCopyThatMayHaveWrittenIsRolledBack(int code) {
        assertEquals(RemoteStorageException.class, Errors.ofCopy(answered(code)).getClass());
        DaemonException begun = DaemonException.answered(code, "n", "m", Map.of("write_begun", true));
        assertEquals(RemoteStorageException.class, Errors.ofCopy(begun).getClass());
    }

    @Test
    void aDeleteFailsWithACheckedExceptionWhateverItWas() {
        assertEquals(RemoteStorageException.class, Errors.ofDelete(answered(200)).getClass());
        assertEquals(RemoteStorageException.class, Errors.ofDelete(answered(100)).getClass());
    }
}
