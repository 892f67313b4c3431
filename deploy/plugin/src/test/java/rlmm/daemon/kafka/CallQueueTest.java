package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.Test;

/** Whose turn it is, and who waited for too long. */
final class CallQueueTest {
    private static final long TIMEOUT_MS = 5_000;
    private final CallQueue queue = new CallQueue(8, 100);
    private final long begun = System.nanoTime();
    private int ids;

    private static Call write() {
        return Call.write("write", packer -> packer.packNil(), TIMEOUT_MS);
    }

    private static Call read() {
        return new Call("read", false, packer -> packer.packNil(), TIMEOUT_MS);
    }

    private long at(long ms) {
        return begun + TimeUnit.MILLISECONDS.toNanos(ms);
    }

    private List<Call> send(long ms) {
        List<Call> sent = new ArrayList<>();
        for (Call next = queue.send(ids + 1, at(ms)); next != null; next = queue.send(ids + 1, at(ms))) {
            ids++;
            sent.add(next);
        }
        return sent;
    }

    private List<Call> writes(int count) throws Exception {
        List<Call> writes = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            writes.add(write());
        }
        queue.add(writes);
        return writes;
    }

    @Test
    void writesStandInALineOfTheirOwnAndLeavePlaces() throws Exception {
        writes(20);
        assertEquals(6, send(0).size());
        Call read = read();
        queue.add(List.of(read));
        assertSame(read, send(0).get(0));
        queue.answered(read, false, at(1));
        assertNull(queue.send(99, at(1)), "a place for a read is none for a write");
    }

    @Test
    void aWritesDeadlineBeginsWhenItIsSent() throws Exception {
        writes(7);
        List<Call> first = send(0);
        assertTrue(queue.late(at(4_999)).isEmpty());
        queue.answered(first.get(0), false, at(4_900));
        Call last = send(4_950).get(0);
        assertEquals(5, queue.late(at(5_500)).size(), "the first, but for the one that was answered");
        assertTrue(queue.late(at(9_900)).isEmpty());
        assertEquals(List.of(last), queue.late(at(9_950)));
    }

    @Test
    void theLineEndsOnceNoWriteWasAnsweredForADeadline() throws Exception {
        List<Call> writes = writes(20);
        List<Call> first = send(0);
        queue.answered(first.get(0), false, at(3_000));
        assertEquals(5, queue.late(at(7_500)).size(), "of those in flight");
        assertEquals(14, queue.late(at(8_100)).size());
        assertTrue(queue.isEmpty());
        assertEquals(0, writes.get(19).id);
    }

    @Test
    void anAnswerThatSaysLaterMovesNothing() throws Exception {
        writes(20);
        List<Call> first = send(0);
        queue.answered(first.get(0), true, at(4_900));
        assertEquals(19, queue.late(at(6_000)).size());
    }

    @Test
    void noWriteWaitsForEverHoweverWellTheLineMoves() throws Exception {
        writes(20);
        List<Call> first = send(0);
        queue.answered(first.get(0), false, at(CallQueue.WAITING_MS_MAX));
        assertEquals(19, queue.late(at(CallQueue.WAITING_MS_MAX + 100)).size());
    }

    @Test
    void allOrNoneOfThemWaitAndNotMoreThanTheBound() throws Exception {
        writes(60);
        assertThrows(DaemonException.class, () -> writes(41));
        writes(40);
        assertEquals(100, queue.drain().size());
        assertTrue(queue.isEmpty());
        assertEquals(6, send(0).size() + writes(6).size(), "drained places are free");
        assertEquals(6, send(0).size());
    }

    @Test
    void whoIsForgottenGivesItsPlaceUpOnce() throws Exception {
        List<Call> writes = writes(8);
        send(0);
        assertTrue(queue.forget(writes.get(0)));
        assertTrue(!queue.forget(writes.get(0)) && !queue.forget(writes.get(7)));
        queue.answered(writes.get(0), false, at(1)); // while it was forgotten
        assertEquals(List.of(writes.get(6)), send(1));
    }
}
