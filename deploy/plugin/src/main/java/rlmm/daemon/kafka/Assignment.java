package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

import org.apache.kafka.common.TopicIdPartition;
import org.msgpack.core.MessagePacker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which partitions the broker leads and follows, told to the daemon in the broker's order.
 *
 * <p>On every new connection the full set goes first, because a daemon that was away knows an old one; it alone opens
 * the daemon's gate. Changes follow one by one. Whenever a message was not taken, the full set is said again: then its
 * order with the lost one no longer matters.
 */
final class Assignment {
    /** Below the daemon's limit of 4 MiB per frame, whatever the length of the names. */
    private static final int PARTITIONS_PER_FRAME = 12_000;
    /** The first pause before the full set is said again; it doubles. */
    private static final long REPEAT_MS = 200;
    /** Its bound where the daemon may take it at any moment, and where somebody has to change something first. */
    private static final long REPEAT_SOON_MAX_MS = 800;
    private static final long REPEAT_MAX_MS = 5_000;
    private static final long TIMEOUT_MS = 5_000;
    private static final Logger LOG = LoggerFactory.getLogger(Assignment.class);

    private record Partitions(List<TopicIdPartition> leaders, List<TopicIdPartition> followers) implements Wire.Params {
        @Override
        public void pack(MessagePacker packer) throws IOException {
            packer.packArrayHeader(2);
            Wire.pack(packer, leaders);
            Wire.pack(packer, followers);
        }
    }

    /** What becomes of something that was said. */
    private final class Said implements BiConsumer<List<Wire.Answer>, Throwable> {
        private final String method;
        private final int since = generation;

        Said(String method) {
            this.method = method;
        }

        @Override
        public void accept(List<Wire.Answer> pages, Throwable error) {
            if (error == null) {
                taken(since);
            } else {
                refused(since, method, Caller.daemonException(error));
            }
        }
    }

    /** True where the broker leads. */
    private final Map<TopicIdPartition, Boolean> leads = new HashMap<>();
    private boolean repeat;
    private long repeatAtNanos;
    private long pauseMs = REPEAT_MS;
    /** What the log said last of a refusal. */
    private String complaint = "";
    /** Said since the last full set, and not yet answered. */
    private int unanswered;
    /** Answers to what was said on an older connection, or before the last full set, mean nothing. */
    private int generation;

    /** From {@code onPartitionLeadershipChanges}; returns at once. The connection is null before there is one. */
    synchronized void changed(Connection connection, Collection<TopicIdPartition> leaders,
                              Collection<TopicIdPartition> followers) {
        for (TopicIdPartition partition : leaders) {
            leads.put(partition, true);
        }
        for (TopicIdPartition partition : followers) {
            leads.put(partition, false);
        }
        if (connection != null && connection.isOpen()) {
            say(connection, pieces("on_partition_leadership_changes", "on_partition_leadership_changes",
                List.copyOf(leaders), List.copyOf(followers)), false);
        }
    }

    /** From {@code onStopPartitions}; returns at once. */
    synchronized void stopped(Connection connection, Collection<TopicIdPartition> partitions) {
        partitions.forEach(leads::remove);
        if (connection != null && connection.isOpen()) {
            List<TopicIdPartition> all = List.copyOf(partitions);
            for (int at = 0; at < all.size(); at += PARTITIONS_PER_FRAME) {
                List<TopicIdPartition> some = all.subList(at, Math.min(all.size(), at + PARTITIONS_PER_FRAME));
                say(connection, List.of(new Call("on_stop_partitions", false, packer -> {
                    packer.packArrayHeader(1);
                    Wire.pack(packer, some);
                }, TIMEOUT_MS)), false);
            }
        }
    }

    /** On a new connection, before anybody else may use it. */
    synchronized void greeted(Connection connection) {
        pauseMs = REPEAT_MS;
        sayAll(connection, true);
        connection.open();
    }

    /** Says the full set again if something of it was refused a moment ago. */
    synchronized void tick(Connection connection) {
        if (repeat && System.nanoTime() - repeatAtNanos >= 0) {
            sayAll(connection, false);
        }
    }

    private void sayAll(Connection connection, boolean first) {
        repeat = false;
        generation++;
        unanswered = 0;
        List<TopicIdPartition> leaders = new ArrayList<>();
        List<TopicIdPartition> followers = new ArrayList<>();
        for (Map.Entry<TopicIdPartition, Boolean> each : leads.entrySet()) {
            (each.getValue() ? leaders : followers).add(each.getKey());
        }
        say(connection, pieces("replace_assignment", "on_partition_leadership_changes", leaders, followers), first);
    }

    /** At least one call; each but the first has the second method, so that it adds to what the first one set. */
    private static List<Call> pieces(String first, String others, List<TopicIdPartition> leaders,
                                     List<TopicIdPartition> followers) {
        List<Call> calls = new ArrayList<>();
        int leader = 0;
        int follower = 0;
        do {
            int leaderEnd = Math.min(leaders.size(), leader + PARTITIONS_PER_FRAME);
            int room = PARTITIONS_PER_FRAME - (leaderEnd - leader);
            int followerEnd = Math.min(followers.size(), follower + room);
            List<TopicIdPartition> someLeaders = leaders.subList(leader, leaderEnd);
            List<TopicIdPartition> someFollowers = followers.subList(follower, followerEnd);
            calls.add(new Call(calls.isEmpty() ? first : others, false,
                new Partitions(someLeaders, someFollowers), TIMEOUT_MS));
            leader = leaderEnd;
            follower = followerEnd;
        } while (leader < leaders.size() || follower < followers.size());
        return calls;
    }

    /** All or nothing; {@code first} is before anybody else may say anything. */
    private void say(Connection connection, List<Call> calls, boolean first) {
        unanswered += calls.size();
        for (Call call : calls) {
            call.future.whenComplete(new Said(call.method));
        }
        try {
            if (first) {
                connection.submitFirst(calls);
            } else {
                connection.submit(calls);
            }
        } catch (DaemonException unsaid) { // too much waits, or the connection was lost a moment ago
            refused(generation, calls.get(0).method, unsaid);
        }
    }

    /** Once all is taken, the next refusal is a new one. */
    private synchronized void taken(int said) {
        if (said == generation && --unanswered == 0 && !repeat) {
            pauseMs = REPEAT_MS;
            complaint = "";
        }
    }

    /** Logged once, however often the same is refused; said again after a pause, however much of it was refused. */
    private synchronized void refused(int said, String method, DaemonException error) {
        if (said != generation || repeat) {
            return;
        }
        if (!complaint.equals(error.getMessage())) {
            complaint = error.getMessage();
            LOG.info("{} is said again as a whole until it is taken: {}", method, complaint);
        }
        repeat = true;
        pauseMs = Math.min(pauseMs, error.isRetriable() ? REPEAT_SOON_MAX_MS : REPEAT_MAX_MS);
        repeatAtNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pauseMs);
        pauseMs *= 2;
    }
}
