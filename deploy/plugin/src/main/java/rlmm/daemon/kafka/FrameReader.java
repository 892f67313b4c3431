package rlmm.daemon.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.util.Arrays;

/**
 * Cuts a stream of bytes into frames' bodies; holds one unfinished frame and at most one buffer of what follows. Room is
 * made for what has come, and not for what was announced.
 */
final class FrameReader {
    private static final int FIRST_BYTES = 64 * 1024;

    private final ByteBuffer buffer;
    private final int frameBytesMax;
    private byte[] body;
    private int length;
    private int filled;

    FrameReader(int bufferBytes, int frameBytesMax) {
        this.buffer = ByteBuffer.allocateDirect(bufferBytes).flip();
        this.frameBytesMax = frameBytesMax;
    }

    /**
     * Takes in what is there; false when nothing is.
     *
     * @throws EOFException the peer is gone
     */
    boolean fill(ReadableByteChannel channel) throws IOException {
        buffer.compact();
        int count = channel.read(buffer);
        buffer.flip();
        if (count < 0) {
            throw new EOFException("the daemon closed the connection");
        }
        return count > 0;
    }

    /** The next whole body, or null when it is not all here yet. */
    byte[] next() throws DaemonException {
        if (body == null && !begin()) {
            return null;
        }
        int count = Math.min(length - filled, buffer.remaining());
        makeRoom(filled + count);
        buffer.get(body, filled, count);
        filled += count;
        if (filled < length) {
            return null;
        }
        byte[] whole = body;
        body = null;
        return whole;
    }

    /** What came behind the last frame: the beginning of a bulk answer. */
    ByteBuffer rest() {
        return buffer;
    }

    private void makeRoom(int needed) {
        if (needed > body.length) {
            body = Arrays.copyOf(body, (int) Math.min(length, Math.max(needed, 2L * body.length)));
        }
    }

    private boolean begin() throws DaemonException {
        if (buffer.remaining() < Wire.HEADER_BYTES) {
            return false;
        }
        length = buffer.getInt();
        if (length < 0 || length > frameBytesMax) {
            throw DaemonException.garbled("a frame of " + Integer.toUnsignedString(length) + " bytes");
        }
        body = new byte[Math.min(length, FIRST_BYTES)];
        filled = 0;
        return true;
    }
}
