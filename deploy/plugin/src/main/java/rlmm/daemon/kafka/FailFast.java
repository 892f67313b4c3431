package rlmm.daemon.kafka;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;

/**
 * What is refused at once in a topic's deletion, because nobody answered a moment ago.
 *
 * <p>The broker deletes a topic's segments one after the other on its metadata-publishing thread, under a lock: no
 * other change of the cluster reaches it meanwhile. So a partition of which something was not answered costs one
 * deadline, and all of them together cost that thread a few. A refusal that came at once is none of these: whoever
 * may not delete one segment may delete the next.
 */
class FailFast {
    /** So much of the broker's time may go into calls that nobody answers; then none is made any more for a while. */
    static final long LOST_MS_MAX = 15_000;
    static final String REFUSED = "this topic is being deleted, and nobody answered a moment ago: refused for a while,"
        + " so that the broker's other changes do not wait";
    private static final int PARTITIONS_MAX = 10_000;

    private final long pauseNanos;
    private final long lostMaxNanos;
    /** The eldest first. */
    private final Map<TopicIdPartition, Silence> silent = new LinkedHashMap<>();
    private long lostNanos;

    private record Silence(long untilNanos, long lostNanos) { }

    /** For so long, and everything once so much time was lost to silence within that. */
    FailFast(long pauseMs, long lostMaxMs) {
        this.pauseNanos = TimeUnit.MILLISECONDS.toNanos(pauseMs);
        this.lostMaxNanos = TimeUnit.MILLISECONDS.toNanos(lostMaxMs);
    }

    /** What a test's clock overrides. */
    long nanoTime() {
        return System.nanoTime();
    }

    /** Something of this partition was not answered in time. */
    synchronized void silent(TopicIdPartition partition, long tookNanos) {
        forget(silent.remove(partition));
        silent.put(partition, new Silence(nanoTime() + pauseNanos, tookNanos));
        lostNanos += tookNanos;
        if (silent.size() > PARTITIONS_MAX) {
            Iterator<Silence> eldest = silent.values().iterator();
            forget(eldest.next());
            eldest.remove();
        }
    }

    /** Whether a call about this partition is to fail at once. */
    synchronized boolean refuses(TopicIdPartition partition) {
        long now = nanoTime();
        for (Iterator<Silence> each = silent.values().iterator(); each.hasNext();) {
            Silence eldest = each.next();
            if (now - eldest.untilNanos < 0) {
                break;
            }
            forget(eldest);
            each.remove();
        }
        return silent.containsKey(partition) || !silent.isEmpty() && lostNanos >= lostMaxNanos;
    }

    private void forget(Silence gone) {
        lostNanos -= gone == null ? 0 : gone.lostNanos;
    }

    /** Nobody answered by the deadline: the daemon, or what it asked; its own is a little shorter than this side's. */
    static boolean isSilence(DaemonException error) {
        return error.code() == DaemonException.TIMED_OUT && error.origin() != DaemonException.Origin.INTERRUPTED;
    }
}
