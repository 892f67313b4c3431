package rlmm.daemon.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;

/** Cuts a stream of bytes into frames' bodies; holds one unfinished frame and at most one buffer of what follows. */
final class FrameReader {
    private final ByteBuffer buffer;
    private byte[] body;
    private int filled;

    FrameReader(int bufferBytes) {
        this.buffer = ByteBuffer.allocateDirect(bufferBytes).flip();
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
        int count = Math.min(body.length - filled, buffer.remaining());
        buffer.get(body, filled, count);
        filled += count;
        if (filled < body.length) {
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

    private boolean begin() throws DaemonException {
        if (buffer.remaining() < Wire.HEADER_BYTES) {
            return false;
        }
        int length = buffer.getInt();
        if (length < 0 || length > Wire.FRAME_BYTES_MAX) {
            throw DaemonException.garbled("a frame of " + Integer.toUnsignedString(length) + " bytes");
        }
        body = new byte[length];
        filled = 0;
        return true;
    }
}
