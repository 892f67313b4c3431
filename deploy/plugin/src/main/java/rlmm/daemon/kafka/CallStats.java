package rlmm.daemon.kafka;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;

/** Counts in buckets of a constant ratio (8 per power of two), so a quantile is right within 12 percent. */
final class CallStats implements CallStatsMXBean {
    private static final int PER_DOUBLING = 8;
    private static final int BUCKETS = 40 * PER_DOUBLING; // up to 2^40 microseconds
    private static final double NANOS_PER_MS = TimeUnit.MILLISECONDS.toNanos(1);

    private final AtomicLongArray buckets = new AtomicLongArray(BUCKETS);
    private final LongAdder count = new LongAdder();
    private final LongAdder failures = new LongAdder();
    private final LongAdder nanos = new LongAdder();
    private final AtomicLong max = new AtomicLong();

    void add(long tookNanos, boolean succeeded) {
        count.increment();
        if (!succeeded) {
            failures.increment();
        }
        nanos.add(tookNanos);
        for (long known = max.get(); known < tookNanos && !max.compareAndSet(known, tookNanos);) {
            known = max.get();
        }
        buckets.incrementAndGet(bucket(tookNanos));
    }

    private static int bucket(long tookNanos) {
        double micros = Math.max(1.0, tookNanos / 1_000.0);
        return Math.min(BUCKETS - 1, (int) (PER_DOUBLING * Math.log(micros) / Math.log(2)));
    }

    private double quantileMs(double share) {
        long wanted = (long) Math.ceil(share * count.sum());
        long seen = 0;
        for (int i = 0; i < BUCKETS; i++) {
            seen += buckets.get(i);
            if (seen >= wanted && seen > 0) {
                return Math.pow(2, (i + 1.0) / PER_DOUBLING) / 1_000.0;
            }
        }
        return 0;
    }

    @Override
    public long getCount() {
        return count.sum();
    }

    @Override
    public long getFailures() {
        return failures.sum();
    }

    @Override
    public double getMeanMs() {
        long calls = count.sum();
        return calls == 0 ? 0 : nanos.sum() / NANOS_PER_MS / calls;
    }

    @Override
    public double getP50Ms() {
        return quantileMs(0.5);
    }

    @Override
    public double getP99Ms() {
        return quantileMs(0.99);
    }

    @Override
    public double getMaxMs() {
        return max.get() / NANOS_PER_MS;
    }
}
