package rlmm.daemon.kafka;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.Uuid;

/**
 * Topics whose deletes are refused at once, or whose listings are not held, because one has just failed.
 *
 * <p>The broker deletes a topic's segments one after the other on its metadata-publishing thread, under a lock. One
 * deadline may be spent there, not one per segment and partition.
 */
class FailFast {
    private static final int TOPICS_MAX = 10_000;
    /** So long for each segment is too long, whatever the reason. */
    private static final long LONG_MS = 500;

    private final long pauseNanos;
    private final Map<Uuid, Long> until = new LinkedHashMap<>();

    FailFast(long pauseMs) {
        this.pauseNanos = TimeUnit.MILLISECONDS.toNanos(pauseMs);
    }

    /** What a test's clock overrides. */
    long nanoTime() {
        return System.nanoTime();
    }

    synchronized void failed(Uuid topicId) {
        until.remove(topicId);
        until.put(topicId, nanoTime() + pauseNanos);
        if (until.size() > TOPICS_MAX) {
            until.remove(until.keySet().iterator().next());
        }
    }

    /** Whether something of this topic failed a moment ago. */
    synchronized boolean remembers(Uuid topicId) {
        Long end = until.get(topicId);
        if (end == null) {
            return false;
        }
        if (nanoTime() - end < 0) {
            return true;
        }
        until.remove(topicId);
        return false;
    }

    /** A failure that took its time or may do so again; with nobody there, or one who leaves, it fails at once anyway. */
    static boolean isWorthIt(DaemonException error, long tookNanos) {
        boolean here = error.origin() == DaemonException.Origin.DAEMON || error.origin() == DaemonException.Origin.LOCAL;
        return here && error.code() != DaemonException.DRAINING
            && (error.isRetriable() || tookNanos >= TimeUnit.MILLISECONDS.toNanos(LONG_MS));
    }
}
