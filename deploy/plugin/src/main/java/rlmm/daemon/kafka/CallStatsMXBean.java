package rlmm.daemon.kafka;

/** One method's calls, {@code rlmm.daemon:type=calls,part=...,broker=...,method=...}; times in milliseconds. */
public interface CallStatsMXBean {
    /** Calls that ended, however. */
    long getCount();

    /** Of them, those that failed: refused, timed out, or with nobody there. */
    long getFailures();

    /** Mean over all calls. */
    double getMeanMs();

    /** Half of the calls took at most so long, within 12 percent. */
    double getP50Ms();

    /** 99 in 100 calls took at most so long, within 12 percent. */
    double getP99Ms();

    /** The slowest call. */
    double getMaxMs();
}
