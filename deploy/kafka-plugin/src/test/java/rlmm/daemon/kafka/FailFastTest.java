package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.kafka.common.Uuid;
import org.junit.jupiter.api.Test;

final class FailFastTest {
    private final AtomicLong now = new AtomicLong(Long.MAX_VALUE - 5); // nanoTime may wrap
    private final FailFast failFast = new FailFast(60_000) {
        @Override
        long nanoTime() {
            return now.get();
        }
    };

    @Test
    void onlyTheTopicThatFailedIsRefusedAndOnlyForAWhile() {
        Uuid failed = new Uuid(1, 1);
        failFast.failed(failed);
        assertTrue(failFast.remembers(failed));
        assertFalse(failFast.remembers(new Uuid(1, 2)));
        now.addAndGet(TimeUnit.SECONDS.toNanos(60) - 1);
        assertTrue(failFast.remembers(failed));
        now.addAndGet(1);
        assertFalse(failFast.remembers(failed));
    }

    @Test
    void whatFailsAtOnceAnywayIsNotRemembered() {
        assertFalse(FailFast.isWorthIt(DaemonException.disconnected("away"), 0));
        assertFalse(FailFast.isWorthIt(DaemonException.interrupted("delete"), 0));
        assertFalse(FailFast.isWorthIt(DaemonException.answered(101, "n", "m", Map.of()), 0));
        assertFalse(FailFast.isWorthIt(DaemonException.answered(DaemonException.DRAINING, "n", "m", Map.of()), 0));
        long longNanos = TimeUnit.MILLISECONDS.toNanos(500);
        assertTrue(FailFast.isWorthIt(DaemonException.answered(300, "n", "m", Map.of()), longNanos));
        assertFalse(FailFast.isWorthIt(DaemonException.answered(300, "n", "m", Map.of()), longNanos - 1));
        assertFalse(FailFast.isWorthIt(DaemonException.disconnected("away"), longNanos));
        assertTrue(FailFast.isWorthIt(DaemonException.silent("delete", 5_000), 0));
        assertTrue(FailFast.isWorthIt(DaemonException.answered(203, "n", "m", Map.of()), 0));
    }
}
