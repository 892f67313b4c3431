package rlmm.daemon.kafka;

import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** Waits for conditions, never for time alone. */
final class Wait {
    private static final long PATIENCE_SECONDS = 60;

    private Wait() { }

    static void until(String what, Callable<Boolean> holds) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!holds.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + PATIENCE_SECONDS + " s: " + what);
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
        }
    }

    /** Until the thread waits for something, or is done. */
    static void untilBlocked(Thread thread) {
        while (thread.isAlive() && thread.getState() != Thread.State.TIMED_WAITING && thread.getState() != Thread.State.WAITING) {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
        }
    }
}
