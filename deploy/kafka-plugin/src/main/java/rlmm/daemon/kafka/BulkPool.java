package rlmm.daemon.kafka;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.Semaphore;

/** Connections for streams: as many as are open at once, of which a few are kept for the next ones. */
final class BulkPool implements AutoCloseable {
    private static final int IDLE_MAX = 16;

    private final PluginConfig config;
    private final PluginMetrics metrics;
    private final long timeoutMs;
    private final Semaphore places;
    private final Deque<BulkConnection> idle = new ArrayDeque<>();
    private boolean closed;

    BulkPool(PluginConfig config, PluginMetrics metrics) {
        this.config = config;
        this.metrics = metrics;
        this.timeoutMs = config.integer(PluginConfig.FETCH_TIMEOUT_MS);
        this.places = new Semaphore(config.integer(PluginConfig.FETCH_CONNECTIONS_MAX));
    }

    /** An answer that has begun, on a connection that has to be given back. */
    record Begun(BulkConnection connection, BulkConnection.Header header) { }

    long timeoutMs() {
        return timeoutMs;
    }

    /**
     * Sends a request, on a fresh connection where a kept one turns out to be dead.
     *
     * @throws DaemonException what the daemon answered, or that it did not
     */
    Begun request(String method, Wire.Params params) throws DaemonException {
        if (!places.tryAcquire()) {
            throw DaemonException.overloaded("too many streams are open; see fetch.connections.max");
        }
        Begun begun = null;
        long started = System.nanoTime();
        try {
            begun = requestKept(method, params);
            if (begun == null) {
                begun = requestFresh(method, params);
            }
            metrics.openStreams.incrementAndGet();
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
    private Begun requestKept(String method, Wire.Params params) throws IOException, DaemonException {
        BulkConnection kept;
        while ((kept = take()) != null) {
            try {
                return begin(kept, method, params);
            } catch (InterruptedIOException notItsFault) {
                throw notItsFault; // or nothing came in time, which is a subclass
            } catch (IOException stale) {
                continue;
            }
        }
        return null;
    }

    private Begun requestFresh(String method, Wire.Params params) throws IOException, DaemonException {
        return begin(BulkConnection.open(config, timeoutMs), method, params);
    }

    private Begun begin(BulkConnection connection, String method, Wire.Params params)
            throws IOException, DaemonException {
        try {
            return new Begun(connection, connection.request(method, params, timeoutMs));
        } catch (DaemonException answered) {
            if (answered.origin() == DaemonException.Origin.DAEMON) {
                keep(connection);
            } else {
                connection.close();
            }
            throw answered;
        } catch (IOException | RuntimeException broken) {
            connection.close();
            throw broken;
        }
    }

    /** Ends a stream; a connection on which bytes are left is closed, which cancels at the daemon's side. */
    void giveBack(BulkConnection connection, boolean clean) {
        places.release();
        metrics.openStreams.decrementAndGet();
        if (clean) {
            keep(connection);
        } else {
            metrics.streamsClosedEarly.incrementAndGet();
            connection.close();
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
    public synchronized void close() {
        closed = true;
        idle.forEach(BulkConnection::close);
        idle.clear();
    }
}
