package rlmm.daemon.kafka;

import java.util.concurrent.TimeUnit;

/**
 * How long a topic's deletion may wait for a daemon that is away: so much within each {@value #WINDOW_MS} ms,
 * whatever waits at the same time counted once.
 *
 * <p>The broker asks once for what it deletes. Its thread applies every other change of the cluster, too, and it bears
 * being held for as long as a daemon takes to start again: the broker's heartbeats come from another thread, so that it
 * stays in the cluster, and it goes on to produce and to fetch. It does not bear that for each partition of a topic.
 */
class Allowance {
    static final long WINDOW_MS = 60_000;

    private final long maxNanos;
    private long windowEndsNanos;
    private long spentNanos;
    private int waiting;
    private long sinceNanos;

    Allowance(long maxMs) {
        this.maxNanos = TimeUnit.MILLISECONDS.toNanos(maxMs);
        this.windowEndsNanos = nanoTime();
    }

    /** What a test's clock overrides. */
    long nanoTime() {
        return System.nanoTime();
    }

    /** Zero or less: nothing may wait now. */
    synchronized long leftMs() {
        long now = nanoTime();
        if (waiting == 0 && now - windowEndsNanos >= 0) {
            spentNanos = 0;
        }
        long spending = waiting > 0 ? now - sinceNanos : 0;
        return TimeUnit.NANOSECONDS.toMillis(maxNanos - spentNanos - spending);
    }

    /** Something waits from now on. */
    synchronized void begin() {
        long now = nanoTime();
        if (waiting++ > 0) {
            return;
        }
        sinceNanos = now;
        if (now - windowEndsNanos >= 0) {
            spentNanos = 0;
            windowEndsNanos = now + TimeUnit.MILLISECONDS.toNanos(WINDOW_MS);
        }
    }

    /** It no longer does. */
    synchronized void end() {
        if (--waiting == 0) {
            spentNanos += nanoTime() - sinceNanos;
        }
    }
}
