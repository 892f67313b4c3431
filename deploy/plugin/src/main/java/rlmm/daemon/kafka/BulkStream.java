package rlmm.daemon.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;

/** A range of a segment, or an index, as the broker reads it: fewer bytes than announced is an error, never an end. */
final class BulkStream extends InputStream {
    private final BulkCursor cursor;
    private long position;
    private boolean closed;
    private boolean broken;

    /** From a position that the cursor reaches. */
    BulkStream(BulkCursor cursor, long start) {
        this.cursor = cursor;
        this.position = start;
        cursor.metrics().openStreams.incrementAndGet();
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] target, int at, int count) throws IOException {
        Objects.checkFromIndexSize(at, count, target.length);
        if (closed || broken) {
            throw new IOException("the stream is closed");
        }
        if (count == 0) {
            return 0;
        }
        if (position > cursor.last()) {
            return -1;
        }
        broken = true; // until it is read
        int got = cursor.read(position, target, at, (int) Math.min(count, cursor.last() + 1 - position));
        broken = false;
        position += got;
        return got;
    }

    @Override
    public int available() {
        return 0;
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            cursor.metrics().openStreams.decrementAndGet();
            cursor.leave();
        }
    }
}
