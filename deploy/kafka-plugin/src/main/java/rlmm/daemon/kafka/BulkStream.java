package rlmm.daemon.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.util.Objects;
import java.util.zip.CRC32C;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;

/**
 * A range of a segment, or an index, as the broker reads it: fewer bytes than announced is an error, never an end.
 *
 * <p>The broker opens a segment to its end and closes it after one fetch's worth. So a log is asked for in windows
 * that grow as the reader goes on: what a close leaves over is little, and the next request on the connection passes
 * over it. Where more is left the connection is closed, and that cancels at the daemon's side.
 */
final class BulkStream extends InputStream {
    /** A fetch of the default max.partition.fetch.bytes, and the batches around its edges. */
    static final int FIRST_WINDOW_BYTES = 1024 * 1024 + 128 * 1024;
    static final int WINDOW_BYTES_MAX = 8 * 1024 * 1024;
    private static final int LEFT_BYTES_MAX = 512 * 1024;

    /** Asks for {@code [from, endInclusive]}. */
    @FunctionalInterface
    interface Source {
        BulkPool.Begun ask(long from, long endInclusive) throws DaemonException;
    }

    private final BulkPool pool;
    private final Source source;
    private final long endInclusive;
    private long next;
    private int window;
    private BulkConnection connection;
    private long left;
    private long expectedSum;
    private CRC32C sum;
    private boolean closed;

    private BulkStream(BulkPool pool, Source source, long next, long endInclusive) {
        this.pool = pool;
        this.source = source;
        this.next = next;
        this.endInclusive = endInclusive;
    }

    /** A range of known ends. */
    static BulkStream ofRange(BulkPool pool, Source source, long start, long endInclusive) throws DaemonException {
        BulkStream stream = new BulkStream(pool, source, start, endInclusive);
        stream.window = FIRST_WINDOW_BYTES;
        stream.advance();
        return stream;
    }

    /** A whole answer of whatever length. */
    static BulkStream ofAll(BulkPool pool, BulkPool.Begun begun) {
        BulkStream stream = new BulkStream(pool, null, 1, 0);
        stream.begin(begun);
        return stream;
    }

    private void advance() throws DaemonException {
        long last = Math.min(endInclusive, next + window - 1);
        begin(source.ask(next, last));
        next = last + 1;
        window = Math.min(2 * window, WINDOW_BYTES_MAX);
    }

    private void begin(BulkPool.Begun begun) {
        connection = begun.connection();
        left = begun.header().length();
        expectedSum = begun.header().crc32c();
        sum = expectedSum < 0 ? null : new CRC32C();
        finishIfDone();
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] target, int at, int count) throws IOException {
        Objects.checkFromIndexSize(at, count, target.length);
        if (closed) {
            throw new IOException("the stream is closed");
        }
        if (count == 0) {
            return 0;
        }
        if (connection == null && !askForMore()) {
            return -1;
        }
        int got = readSome(target, at, (int) Math.min(count, left));
        left -= got;
        if (sum != null) {
            sum.update(target, at, got);
        }
        requireSum();
        finishIfDone();
        return got;
    }

    private boolean askForMore() throws IOException {
        if (next > endInclusive) {
            return false;
        }
        try {
            advance();
        } catch (DaemonException error) {
            if (error.origin() == DaemonException.Origin.INTERRUPTED) {
                throw new InterruptedIOException(error.getMessage());
            }
            if (error.isRetriable()) { // the broker answers a retriable error, and the client asks again
                throw new ReplicaNotAvailableException(error.getMessage(), error);
            }
            throw new IOException(error.getMessage(), error);
        }
        return connection != null;
    }

    private int readSome(byte[] target, int at, int count) throws IOException {
        try {
            return connection.read(target, at, count, pool.timeoutMs());
        } catch (EOFException cut) {
            abandon();
            throw new ReplicaNotAvailableException("the daemon ended the answer " + left + " bytes early", cut);
        } catch (IOException broken) {
            abandon();
            throw broken;
        }
    }

    private void requireSum() throws IOException {
        if (left == 0 && sum != null && sum.getValue() != expectedSum) {
            abandon();
            throw new IOException("the segment's bytes are not those that were stored: CRC-32C "
                + Long.toHexString(sum.getValue()) + " instead of " + Long.toHexString(expectedSum));
        }
    }

    private void finishIfDone() {
        if (left == 0 && connection != null) {
            pool.giveBack(connection, true);
            connection = null;
        }
    }

    private void abandon() {
        if (connection != null) {
            pool.giveBack(connection, false);
            connection = null;
        }
        closed = true;
    }

    @Override
    public int available() {
        return 0;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        if (connection != null && left <= LEFT_BYTES_MAX) {
            connection.leave(left);
            pool.giveBack(connection, true);
            connection = null;
        }
        abandon();
    }
}
