package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;
import org.msgpack.core.MessagePacker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * {@code isReady}, asked of many partitions in one go. A broker that starts asks for one after the other, and a way
 * there and back for each is a good part of what it waits for. So once one is ready, those that were announced and
 * never asked for are asked ahead, and each of their answers may stand in for one question.
 *
 * <p>Only a yes is used: once, within {@value #USED_MS} ms of its question, and on the connection that it came on. A no
 * is asked again, since the first yes is what the broker waits for. So old a yes harms nothing: one that is asked for
 * may be under way for longer ({@code ready.timeout.ms}), the broker works on it until its task ends, and the daemon
 * judges each call of that task anew. A partition is asked ahead at most once per announcement, so a broker's daily
 * ticks ask nothing twice.
 */
final class ReadyAhead {
    static final long USED_MS = 100;
    /** At once; and at most half of what may be in flight, so that what others ask finds room. */
    private static final int AHEAD_MAX = 256;
    private static final Logger LOG = LoggerFactory.getLogger(ReadyAhead.class);

    private final Connection connection;
    private final int aheadMax;
    private final long usedMs;
    /** Announced, and not asked for since; in that order, which is about the one that the broker asks in. */
    private final Set<TopicIdPartition> unasked = new LinkedHashSet<>();
    /** The last that were asked ahead, without those that were asked for since. */
    private final Map<TopicIdPartition, Call> ahead = new HashMap<>();
    private long usedUntilNanos;

    ReadyAhead(Connection connection, int inFlightMax, long usedMs) {
        this.connection = connection;
        this.aheadMax = Math.min(AHEAD_MAX, inFlightMax / 2);
        this.usedMs = usedMs;
    }

    record Question(TopicIdPartition partition, long timeoutMs) implements Wire.Params {
        @Override
        public void pack(MessagePacker packer) throws IOException {
            packer.packArrayHeader(2);
            Wire.pack(packer, partition);
            packer.packLong(timeoutMs);
        }
    }

    synchronized void announced(Set<TopicIdPartition> partitions) {
        ahead.keySet().removeAll(partitions);
        unasked.addAll(partitions);
    }

    synchronized void stopped(Set<TopicIdPartition> partitions) {
        ahead.keySet().removeAll(partitions);
        unasked.removeAll(partitions);
    }

    /** Another daemon may be on the next connection. */
    synchronized void lost() {
        ahead.clear();
    }

    /** Whether the daemon said a moment ago that this one is ready; if not, it has to be asked. */
    synchronized boolean isKnown(TopicIdPartition partition) {
        unasked.remove(partition);
        Call asked = ahead.remove(partition);
        return asked != null && asked.deadlineNanos - System.nanoTime() > 0 && isYes(asked);
    }

    private static boolean isYes(Call asked) {
        if (!asked.future.isDone() || asked.future.isCompletedExceptionally()) {
            return false;
        }
        return asked.future.join().get(0).isYes();
    }

    /** One is ready: asks for others, unless some are known already. Returns at once. */
    synchronized void askOthers() {
        long now = System.nanoTime();
        if (unasked.isEmpty() || !ahead.isEmpty() && usedUntilNanos - now > 0) {
            return; // so at most aheadMax are in flight at a time
        }
        ahead.clear();
        usedUntilNanos = now + TimeUnit.MILLISECONDS.toNanos(usedMs);
        List<Call> calls = new ArrayList<>();
        Iterator<TopicIdPartition> next = unasked.iterator();
        while (calls.size() < aheadMax && next.hasNext()) {
            TopicIdPartition partition = next.next();
            Call call = new Call("is_ready", false, new Question(partition, usedMs), usedMs);
            calls.add(call);
            ahead.put(partition, call);
            next.remove();
        }
        try {
            connection.submit(calls);
        } catch (DaemonException refused) {
            LOG.debug("asking ahead", refused);
        }
    }
}
