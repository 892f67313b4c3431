package rlmm.daemon.kafka;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/**
 * The segment that a look-up found a moment ago. A consumer reads a segment in dozens of fetches, and the broker looks
 * up the segment for each: a way to the daemon and back that is a good part of a fetch of one megabyte.
 *
 * <p>Only what was found is used again: for {@code lookup.reuse.ms} from its question on, for offsets from the one that
 * was asked about to the last one for which the daemon would name the same segment in that leader epoch (less than the
 * segment's own where another one lies over it), and until this broker writes anything of that
 * partition or hears of its leadership, or the connection ends. What another broker or the daemon's cleaner writes comes
 * with the metadata topic's delay anyway, which is of the same size. A segment that was found is finished and never
 * changes, so at worst one that is being deleted is read for that much longer.
 */
final class RecentSegments {
    /** Partitions; then all are forgotten. */
    static final int KEPT_MAX = 1_024;

    private final long usedNanos;
    private final Map<TopicIdPartition, Found> kept = new ConcurrentHashMap<>();
    /** Grows with each reason to forget, so that what was asked before it is not kept after it. */
    private long reasons;

    RecentSegments(long usedMs) {
        this.usedNanos = TimeUnit.MILLISECONDS.toNanos(usedMs);
    }

    private record Found(int epoch, long first, long last, long askedNanos, Optional<RemoteLogSegmentMetadata> segment) { }

    /** Before a question: what its answer is kept under. */
    synchronized long asking() {
        return reasons;
    }

    /** Null: it has to be asked. */
    Optional<RemoteLogSegmentMetadata> of(TopicIdPartition partition, int epoch, long offset) {
        Found found = kept.get(partition);
        return found != null && found.epoch == epoch && found.first <= offset && offset <= found.last
            && System.nanoTime() - found.askedNanos < usedNanos ? found.segment : null;
    }

    synchronized void keep(TopicIdPartition partition, int epoch, long offset, long until,
                           RemoteLogSegmentMetadata segment, long askedNanos, long asking) {
        if (usedNanos == 0 || reasons != asking || !segment.segmentLeaderEpochs().containsKey(epoch)) {
            return;
        }
        if (kept.size() >= KEPT_MAX) {
            kept.clear();
        }
        kept.put(partition, new Found(epoch, offset, until, askedNanos, Optional.of(segment)));
    }

    /** Something of these changes. */
    synchronized void forget(Iterable<TopicIdPartition> partitions) {
        reasons++;
        for (TopicIdPartition each : partitions) { // a lambda would cost a start some milliseconds
            kept.remove(each);
        }
    }

    /** Another daemon may be on the next connection. */
    synchronized void lost() {
        reasons++;
        kept.clear();
    }
}
