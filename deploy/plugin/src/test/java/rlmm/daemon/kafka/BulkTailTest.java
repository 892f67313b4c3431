package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;

import org.junit.jupiter.api.Test;

final class BulkTailTest {
    @Test
    void whatIsKeptIsWhatCameLastWhereverTheReaderBegan() {
        Random random = new Random(5);
        byte[] segment = new byte[4 * BulkTail.BYTES];
        random.nextBytes(segment);
        for (int round = 0; round < 200; round++) {
            int start = random.nextInt(BulkTail.BYTES * 2);
            BulkTail tail = new BulkTail(start);
            int at = start;
            while (at < segment.length) {
                int count = Math.min(segment.length - at, 1 + random.nextInt(random.nextBoolean() ? 100 : 3 * BulkTail.BYTES));
                tail.add(segment, at, count);
                at += count;
                int reach = Math.max(start, at - BulkTail.BYTES);
                assertTrue(tail.reaches(reach) && tail.reaches(at));
                assertFalse(tail.reaches(reach - 1) || tail.reaches(at + 1));
                compare(segment, tail, reach + random.nextInt(at - reach), at);
            }
        }
    }

    private static void compare(byte[] segment, BulkTail tail, int from, int to) {
        byte[] got = new byte[to - from];
        for (int at = 0; at < got.length;) {
            int copied = tail.copy(from + at, got, at, got.length - at);
            assertTrue(copied > 0);
            at += copied;
        }
        assertEquals(-1, java.util.Arrays.mismatch(java.util.Arrays.copyOfRange(segment, from, to), got));
    }
}
