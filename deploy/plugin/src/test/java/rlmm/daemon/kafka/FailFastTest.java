package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.kafka.common.TopicIdPartition;
import org.junit.jupiter.api.Test;

/** What a topic's deletion is spared, and how long it may wait. */
final class FailFastTest {
    private static final TopicIdPartition FIRST = Segments.partition("going", 0);
    private static final TopicIdPartition SECOND = Segments.partition("going", 1);
    private static final TopicIdPartition THIRD = Segments.partition("going", 2);
    private static final TopicIdPartition OTHER = Segments.partition("other", 0);
    private final AtomicLong now = new AtomicLong(Long.MAX_VALUE - 5); // nanoTime may wrap
    private final FailFast failFast = new FailFast(60_000, 9_000) {
        @Override
        long nanoTime() {
            return now.get();
        }
    };
    private final Allowance allowance = new Allowance(10_000) {
        @Override
        long nanoTime() {
            return now == null ? Long.MAX_VALUE - 5 : now.get(); // null while it is made
        }
    };

    private void pass(long ms) {
        now.addAndGet(TimeUnit.MILLISECONDS.toNanos(ms));
    }

    private void silent(TopicIdPartition partition, long ms) {
        failFast.silent(partition, TimeUnit.MILLISECONDS.toNanos(ms));
    }

    @Test
    void onlyThePartitionThatWasNotAnsweredIsRefusedAndOnlyForAWhile() {
        silent(FIRST, 4_500);
        assertTrue(failFast.refuses(FIRST));
        assertFalse(failFast.refuses(SECOND));
        assertFalse(failFast.refuses(OTHER));
        pass(59_999);
        assertTrue(failFast.refuses(FIRST));
        pass(1);
        assertFalse(failFast.refuses(FIRST));
    }

    @Test
    void onceTooMuchOfTheBrokersTimeIsLostEverythingIsRefusedUntilThatIsLongAgo() {
        silent(FIRST, 4_500);
        pass(30_000);
        silent(SECOND, 4_500);
        assertTrue(failFast.refuses(THIRD) && failFast.refuses(OTHER));
        pass(30_000);
        assertFalse(failFast.refuses(THIRD));
        assertFalse(failFast.refuses(FIRST));
        assertTrue(failFast.refuses(SECOND));
    }

    @Test
    void aPartitionThatIsSilentAgainCountsOnce() {
        for (int i = 0; i < 20_000; i++) { // as when all of its segments are marked at once
            silent(FIRST, 4_500);
        }
        assertFalse(failFast.refuses(SECOND));
    }

    @Test
    void onlySilenceIsSilence() {
        assertTrue(FailFast.isSilence(DaemonException.silent("delete", 5_000)));
        assertTrue(FailFast.isSilence(DaemonException.answered(DaemonException.TIMED_OUT, "n", "m", Map.of())));
        for (int code : new int[]{0, 101, 105, 200, 202, 203, 204, 205, 206, 300}) { // 203 may be a permission
            assertFalse(FailFast.isSilence(DaemonException.answered(code, "n", "m", Map.of())), "" + code);
        }
        assertFalse(FailFast.isSilence(DaemonException.disconnected("away")));
        assertFalse(FailFast.isSilence(DaemonException.interrupted("delete")));
    }

    @Test
    void whatWaitsAtTheSameTimeIsCountedOnceAndAMinuteLaterAnew() {
        allowance.begin();
        pass(1_000);
        allowance.begin();
        pass(2_000);
        allowance.end();
        pass(3_000);
        assertEquals(4_000, allowance.leftMs());
        allowance.end();
        pass(53_999);
        assertEquals(4_000, allowance.leftMs());
        pass(1);
        assertEquals(10_000, allowance.leftMs());
    }

    @Test
    void whatIsUsedUpStaysSoWhileSomethingWaits() {
        allowance.begin();
        pass(70_000);
        assertTrue(allowance.leftMs() <= 0);
        allowance.end();
        assertEquals(10_000, allowance.leftMs(), "the minute is over");
    }
}
