package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;

import org.apache.kafka.server.log.remote.metadata.storage.BrokerReadyCallback;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.Test;

/** What newer brokers have, and the oldest that is supported does not. */
final class NewerKafkaTest {
    @Test
    void theCallbackIsSeenByBrokersThatHaveIt() throws Exception {
        assertTrue(BrokerReadyCallback.class.isAssignableFrom(RlmmDaemonMetadataManagerWithCallback.class));
        new RlmmDaemonMetadataManagerWithCallback().onBrokerReady();
    }

    @Test
    void aCopyIsRetriableOnlyOnTheDaemonsWord() {
        DaemonException refused = DaemonException.answered(202, "n", "m", Map.of("write_begun", false));
        assertEquals(RetriableRemoteStorageException.class, Errors.ofCopy(refused).getClass());
        DaemonException forGood = DaemonException.answered(106, "n", "m", Map.of("write_begun", false));
        assertEquals(RemoteStorageException.class, Errors.ofCopy(forGood).getClass());
        for (DaemonException silence : new DaemonException[]{
            DaemonException.disconnected("x"), DaemonException.silent("m", 1), DaemonException.interrupted("m")}) {
            assertEquals(RemoteStorageException.class, Errors.ofCopy(silence).getClass());
        }
    }
}
