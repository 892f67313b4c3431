package rlmm.daemon.kafka;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

import org.apache.kafka.common.Uuid;

/**
 * Connections for streams: as many as are open at once, of which a few are kept for the next ones, and a few where they
 * stopped in the middle of a segment.
 */
final class BulkPool implements AutoCloseable {
    private static final int IDLE_MAX = 16;
    private static final int PARKED_MAX = 16;
    /** Longer than a consumer takes for what it fetched, and well below the daemon's patience with a slow reader. */
    private static final long PARKED_MS = 5_000;

    private final PluginConfig config;
    private final PluginMetrics metrics;
    private final Peers peers;
    private final LocalFiles files;
    private final Semaphore places;
    private final Deque<BulkConnection> idle = new ArrayDeque<>();
    /** The eldest first. */
    private final Deque<Parked> parked = new ArrayDeque<>();
    private boolean closed;

    BulkPool(PluginConfig config, PluginMetrics metrics) {
        this(config, metrics, new Peers(config));
    }

    BulkPool(PluginConfig config, PluginMetrics metrics, Peers peers) {
        this.peers = peers;
        this.config = config;
        this.metrics = metrics;
        this.files = new LocalFiles(config.opensFiles(), LocalFiles.PAUSE_MS);
        this.places = new Semaphore(config.integer(PluginConfig.FETCH_CONNECTIONS_MAX));
    }

    private record Parked(BulkCursor cursor, long untilNanos) { }

    /** An answer that has begun, on a connection that has to be given back. */
    record Begun(BulkConnection connection, BulkConnection.Header header) { }

    PluginMetrics metrics() {
        return metrics;
    }

    LocalFiles files() {
        return files;
    }

    /**
     * Sends a request, on a fresh connection where a kept one turns out to be dead; the deadline is for all of it.
     *
     * @throws DaemonException what the daemon answered, or that it did not
     */
    Begun request(String method, Wire.Params params, long timeoutMs) throws DaemonException {
        while (!places.tryAcquire()) {
            if (discardEldest()) {
                continue;
            }
            throw DaemonException.overloaded("too many streams are open; see fetch.connections.max");
        }
        Begun begun = null;
        long started = System.nanoTime();
        try {
            long deadline = BulkConnection.deadline(timeoutMs);
            begun = requestKept(method, params, deadline);
            if (begun == null) {
                begun = begin(BulkConnection.open(config, peers, deadline), method, params, deadline);
            }
            return begun;
        } catch (SocketTimeoutException late) {
            throw DaemonException.silent(method, timeoutMs);
        } catch (InterruptedIOException hurried) {
            throw DaemonException.interrupted(method);
        } catch (IOException gone) {
            throw DaemonException.disconnected("no daemon answers on " + config.socketPath() + ": " + gone.getMessage());
        } finally {
            metrics.called(method, System.nanoTime() - started, begun != null);
            if (begun == null) {
                places.release();
            }
        }
    }

    /** Null when no kept connection works: the daemon was restarted since. */
    private Begun requestKept(String method, Wire.Params params, long deadline) throws IOException, DaemonException {
        BulkConnection kept;
        while ((kept = take()) != null) {
            try {
                return begin(kept, method, params, deadline);
            } catch (InterruptedIOException notItsFault) {
                throw notItsFault; // or nothing came in time, which is a subclass
            } catch (IOException stale) {
                continue;
            }
        }
        return null;
    }

    private Begun begin(BulkConnection connection, String method, Wire.Params params, long deadline)
            throws IOException, DaemonException {
        boolean done = false;
        try {
            Begun begun = new Begun(connection, connection.request(method, params, deadline));
            done = true;
            return begun;
        } catch (DaemonException answered) {
            if (answered.origin() == DaemonException.Origin.DAEMON && connection.isInStep()) {
                done = true;
                keep(connection);
            }
            throw answered;
        } finally { // also where there is no memory left
            if (!done) {
                connection.close();
            }
        }
    }

    /** Ends an answer; a connection on which bytes are left is closed, which cancels at the daemon's side. */
    void giveBack(BulkConnection connection, boolean clean) {
        places.release();
        if (clean) {
            keep(connection);
        } else {
            metrics.streamsClosedEarly.incrementAndGet();
            connection.close();
        }
    }

    /** Keeps a cursor, and the connection that it is on, for whoever reads on. */
    void park(BulkCursor cursor) {
        List<BulkCursor> over = new ArrayList<>();
        synchronized (this) {
            if (closed) {
                over.add(cursor);
            } else {
                parked.add(new Parked(cursor, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PARKED_MS)));
                if (parked.size() > PARKED_MAX) {
                    over.add(parked.poll().cursor());
                }
            }
        }
        discard(over);
    }

    /** A parked cursor from which a stream to the segment's end can be read; null when there is none. */
    BulkCursor resume(Uuid segment, long position, long end) {
        synchronized (this) {
            for (Iterator<Parked> each = parked.iterator(); each.hasNext();) {
                BulkCursor cursor = each.next().cursor();
                if (cursor.isAt(segment, position, end)) {
                    each.remove();
                    cursor.resume();
                    metrics.streamsParked.set(parked.size());
                    metrics.streamsResumed.incrementAndGet();
                    return cursor;
                }
            }
        }
        return null;
    }

    /** Discards what was parked for long enough; called now and then. */
    void tick() {
        long now = System.nanoTime();
        discardIf(entry -> now - entry.untilNanos() >= 0);
    }

    /** Nobody will read on in this segment. */
    void forget(Uuid segment) {
        discardIf(entry -> entry.cursor().isOf(segment));
    }

    /** The daemon is gone, or does not answer: what was parked has nothing more to give. */
    void forgetAll() {
        discardIf(entry -> true);
        files.askAgain();
    }

    private void discardIf(Predicate<Parked> which) {
        List<BulkCursor> over = new ArrayList<>();
        synchronized (this) {
            for (Iterator<Parked> each = parked.iterator(); each.hasNext();) {
                Parked entry = each.next();
                if (which.test(entry)) {
                    each.remove();
                    over.add(entry.cursor());
                }
            }
        }
        discard(over);
    }

    private boolean discardEldest() {
        Parked eldest;
        synchronized (this) {
            eldest = parked.poll();
        }
        if (eldest != null) {
            discard(List.of(eldest.cursor()));
        }
        return eldest != null;
    }

    /** They are shown as parked until they are closed, so that whoever sees none sees each of them as closed. */
    private void discard(List<BulkCursor> over) {
        over.forEach(BulkCursor::discard);
        synchronized (this) {
            metrics.streamsParked.set(parked.size());
        }
    }

    private synchronized BulkConnection take() {
        return idle.pollLast();
    }

    private void keep(BulkConnection connection) {
        synchronized (this) {
            if (!closed && idle.size() < IDLE_MAX) {
                idle.add(connection);
                return;
            }
        }
        connection.close();
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            idle.forEach(BulkConnection::close);
            idle.clear();
        }
        forgetAll();
    }
}
