package rlmm.daemon.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.util.zip.CRC32C;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.ReplicaNotAvailableException;

/**
 * How far a segment has been read: the connection on which its next bytes come, and the last ones that came.
 *
 * <p>The broker opens a segment to its end and closes it after one fetch's worth, and its next fetch begins with the
 * batch that this one cut. So a log is asked for in windows that grow as the reader goes on, and a cursor is parked
 * rather than closed: whoever goes on there asks the daemon nothing. Where the log is a file that this broker may open,
 * that is read instead, and parked alike.
 *
 * <p>Used by one thread at a time.
 */
final class BulkCursor {
    /** A fetch of the default max.partition.fetch.bytes, and the batches around its edges. */
    static final int FIRST_WINDOW_BYTES = 1024 * 1024 + 128 * 1024;
    static final int WINDOW_BYTES_MAX = 8 * 1024 * 1024;
    private static final int LEFT_BYTES_MAX = 512 * 1024;

    /** Asks for {@code [from, endInclusive]}, or for the name of the whole file. */
    @FunctionalInterface
    interface Source {
        BulkPool.Begun ask(long from, long endInclusive, boolean mayOpen) throws DaemonException;
    }

    private final BulkPool pool;
    private final Source source;
    private final Uuid segment;
    private final long last;
    private final long timeoutMs;
    private final BulkTail tail;
    private int window = FIRST_WINDOW_BYTES;
    private long next;
    private BulkConnection connection;
    private long left;
    private long expectedSum;
    private CRC32C sum;
    private boolean resumed;
    /** Instead of a connection, where the daemon's file could be opened. */
    private FileChannel file;

    private BulkCursor(BulkPool pool, Source source, Uuid segment, long start, long last,
                       long timeoutMs) {
        this.pool = pool;
        this.source = source;
        this.segment = segment;
        this.next = start;
        this.last = last;
        this.timeoutMs = timeoutMs;
        this.tail = new BulkTail(start);
    }

    /** On a segment whose last byte is known; the time is that of waiting for the next bytes. */
    static BulkCursor ofSegment(BulkPool pool, Source source, Uuid segment, long start, long last, long timeoutMs)
            throws DaemonException {
        BulkCursor cursor = new BulkCursor(pool, source, segment, start, last, timeoutMs);
        cursor.ask(pool.files().mayOpen());
        return cursor;
    }

    /** On an answer of whatever length, all of which is there. */
    static BulkCursor ofAnswer(BulkPool pool, BulkPool.Begun begun, long timeoutMs) {
        BulkCursor cursor = new BulkCursor(pool, null, null, 0, begun.header().length() - 1, timeoutMs);
        cursor.begin(begun);
        return cursor;
    }

    long last() {
        return last;
    }

    PluginMetrics metrics() {
        return pool.metrics();
    }

    boolean isOf(Uuid wanted) {
        return wanted.equals(segment);
    }

    /** Whether a stream from there to {@code end} can be read here. */
    boolean isAt(Uuid wanted, long position, long end) {
        return isOf(wanted) && end == last && (file != null || tail.reaches(position));
    }

    /** Reads at least one byte from a position that the cursor reaches, and that is not beyond the last byte. */
    int read(long position, byte[] target, int at, int count) throws IOException {
        if (file != null) {
            return readFile(position, target, at, count);
        }
        if (position < next) {
            return tail.copy(position, target, at, count);
        }
        if (connection == null) {
            askForMore();
        }
        int got = readSome(target, at, (int) Math.min(count, left));
        left -= got;
        next += got;
        if (segment != null) {
            tail.add(target, at, got);
        }
        if (sum != null) {
            sum.update(target, at, got);
        }
        requireSum();
        finishIfDone();
        return got;
    }

    private int readFile(long position, byte[] target, int at, int count) throws IOException {
        int got;
        try {
            got = file.read(ByteBuffer.wrap(target, at, Math.min(count, BulkConnection.READ_BYTES_MAX)), position);
        } catch (ClosedByInterruptException hurried) {
            closeFile();
            throw hurried;
        } catch (IOException broken) {
            closeFile();
            metrics().streamsBroken.incrementAndGet();
            throw broken;
        }
        if (got <= 0) {
            closeFile();
            metrics().streamsBroken.incrementAndGet();
            throw new EOFException("the segment's file ends at " + position + ", before its last byte at " + last);
        }
        return got;
    }

    private void closeFile() {
        FileChannel closing = file;
        file = null;
        if (closing != null) {
            try {
                closing.close();
            } catch (IOException gone) {
                return; // it was only read
            }
        }
    }

    private int readSome(byte[] target, int at, int count) throws IOException {
        try {
            return connection.read(target, at, count, timeoutMs);
        } catch (EOFException cut) {
            end(false);
            if (!resumed) {
                metrics().streamsBroken.incrementAndGet();
                throw new ReplicaNotAvailableException("the daemon ended the answer " + left + " bytes early", cut);
            }
            askForMore(); // it was restarted while the cursor was parked
            return readSome(target, at, (int) Math.min(count, left));
        } catch (IOException broken) {
            end(false);
            boolean hurried = broken instanceof InterruptedIOException && !(broken instanceof SocketTimeoutException);
            if (!hurried) {
                metrics().streamsBroken.incrementAndGet();
            }
            throw broken;
        }
    }

    private void askForMore() throws IOException {
        try {
            ask(false);
        } catch (DaemonException error) {
            if (error.origin() == DaemonException.Origin.INTERRUPTED) {
                throw new InterruptedIOException(error.getMessage());
            }
            metrics().streamsBroken.incrementAndGet();
            if (error.isRetriable()) { // the broker answers a retriable error, and the client asks again
                throw new ReplicaNotAvailableException(error.getMessage(), error);
            }
            throw new IOException(error.getMessage(), error);
        }
    }

    private void ask(boolean mayOpen) throws DaemonException {
        resumed = false;
        long end = Math.min(last, next + window - 1);
        BulkPool.Begun begun = source.ask(next, end, mayOpen);
        if (begun.header().file() != null) {
            pool.giveBack(begun.connection(), true);
            file = pool.files().open(begun.header().file(), begun.connection().mayNameFiles());
            if (file != null) {
                metrics().filesOpened.incrementAndGet();
                return;
            }
            begun = source.ask(next, end, false);
        }
        begin(begun);
        if (left != end + 1 - next) {
            end(false);
            throw DaemonException.garbled(left + " bytes instead of [" + next + ", " + end + "]");
        }
        window = Math.min(2 * window, WINDOW_BYTES_MAX);
    }

    private void begin(BulkPool.Begun begun) {
        connection = begun.connection();
        left = begun.header().length();
        expectedSum = begun.header().crc32c();
        sum = expectedSum < 0 ? null : new CRC32C();
        finishIfDone();
    }

    private void requireSum() throws IOException {
        if (left == 0 && sum != null && sum.getValue() != expectedSum) {
            end(false);
            metrics().streamsBroken.incrementAndGet();
            throw new IOException("the segment's bytes are not those that were stored: CRC-32C "
                + Long.toHexString(sum.getValue()) + " instead of " + Long.toHexString(expectedSum));
        }
    }

    private void finishIfDone() {
        if (left == 0) {
            end(true);
        }
    }

    /** Where there is no more to come on the connection, or nothing of use. */
    private void end(boolean clean) {
        if (connection != null) {
            pool.giveBack(connection, clean);
            connection = null;
        }
    }

    /** Nobody reads on now; the pool keeps it for a while where somebody may. */
    void leave() {
        if (connection == null && file == null) {
            return;
        }
        if (segment != null) {
            pool.park(this);
        } else {
            discard();
        }
    }

    /** Somebody reads on. The connection may have ended meanwhile, which then is no fault of the segment. */
    void resume() {
        resumed = true;
    }

    /** Nobody will read on. What is left is little, and passed over by the connection's next user, or not sent. */
    void discard() {
        closeFile();
        boolean little = connection != null && left <= LEFT_BYTES_MAX;
        if (little) {
            connection.leave(left);
        }
        end(little);
    }
}
