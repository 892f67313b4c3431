package rlmm.daemon.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.TimeUnit;

import org.msgpack.core.MessageTypeException;
import org.msgpack.value.ArrayValue;
import org.msgpack.value.Value;

/**
 * A connection of role bulk: one request at a time, each answered by a header and raw bytes. Used by one thread at a
 * time, the one that reads the stream.
 *
 * <p>The channel never blocks; waiting is a select, which an interrupt ends without closing anything. After any
 * IOException the connection must be closed.
 */
final class BulkConnection implements AutoCloseable {
    private static final int BUFFER_BYTES = 128 * 1024;
    private static final int MANY_READ_BYTES = 64 * 1024;
    /** The JVM keeps a buffer of the largest read of each thread outside of its heap. */
    static final int READ_BYTES_MAX = 1024 * 1024;

    private final SocketChannel channel;
    private final Selector selector;
    private final boolean mayNameFiles;
    private final FrameReader reader = new FrameReader(BUFFER_BYTES, Wire.HEADER_FRAME_BYTES_MAX);
    private int ids = Greeting.ID;
    /** Bytes of an earlier answer that are still to come, and that nobody wants. */
    private long unwanted;
    /** Whether the daemon spoke of what it was asked, as far as is known. */
    private boolean inStep = true;

    /**
     * What follows an answer's header; {@code crc32c} is negative where the daemon gave none. Nothing follows where a
     * file is named, which is null otherwise.
     */
    record Header(long length, long crc32c, LocalFile file) { }

    private BulkConnection(SocketChannel channel, Selector selector, boolean mayNameFiles) {
        this.channel = channel;
        this.selector = selector;
        this.mayNameFiles = mayNameFiles;
    }

    /**
     * Connects and says hello, until the deadline of {@link #deadline}.
     *
     * @throws IOException nobody answers
     * @throws DaemonException the daemon's refusal
     */
    static BulkConnection open(PluginConfig config, Peers peers, long deadline) throws IOException, DaemonException {
        SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        BulkConnection opened = null;
        boolean greeted = false;
        try {
            channel.configureBlocking(false);
            channel.connect(UnixDomainSocketAddress.of(config.socketPath()));
            boolean mayNameFiles = peers.mayNameFiles(channel);
            opened = new BulkConnection(channel, Selector.open(), mayNameFiles);
            channel.register(opened.selector, SelectionKey.OP_READ);
            opened.write(Greeting.hello(config, "bulk", Greeting.STORAGE), deadline);
            Greeting.welcome(opened.receive(Greeting.ID, deadline));
            greeted = true;
            return opened;
        } finally { // also where there is no memory left
            if (!greeted) {
                if (opened == null) {
                    channel.close();
                } else {
                    opened.close();
                }
            }
        }
    }

    /** Whether what it says may be opened, and not only be read here. */
    boolean mayNameFiles() {
        return mayNameFiles;
    }

    /** Whether another request may follow; else the connection must be closed. */
    boolean isInStep() {
        return inStep;
    }

    /** Sends a request and returns the header of its answer, all of it until the deadline. */
    Header request(String method, Wire.Params params, long deadline) throws IOException, DaemonException {
        int id = ++ids;
        write(Wire.request(id, method, params), deadline);
        skip(deadline);
        Wire.Answer answer = receive(id, deadline);
        if (answer.error() != null) {
            throw answer.error();
        }
        try {
            ArrayValue header = answer.result().asArrayValue();
            Value sum = header.get(1);
            long length = header.get(0).asIntegerValue().asLong();
            if (length < 0) {
                throw new IOException("a bulk answer of " + length + " bytes");
            }
            LocalFile file = file(header);
            if (file != null && length > 0) {
                throw new IOException("a bulk answer that names a file and announces " + length + " bytes");
            }
            return new Header(length, sum.isNilValue() ? -1 : sum.asIntegerValue().asLong(), file);
        } catch (MessageTypeException | IndexOutOfBoundsException broken) {
            throw new IOException("a bulk answer has no header", broken);
        }
    }

    /** A daemon of an earlier version names none. */
    private static LocalFile file(ArrayValue header) {
        if (header.size() < 3 || header.get(2).isNilValue()) {
            return null;
        }
        ArrayValue file = header.get(2).asArrayValue();
        return new LocalFile(file.get(0).asStringValue().asString(), file.get(1).asIntegerValue().asLong(),
            file.get(2).asIntegerValue().asLong());
    }

    /**
     * Reads raw bytes, at least one.
     *
     * @throws EOFException the daemon ended the answer early: never an end of stream
     * @throws SocketTimeoutException nothing came in time
     * @throws InterruptedIOException the thread is interrupted, its flag is still set
     */
    int read(byte[] target, int at, int count, long timeoutMs) throws IOException {
        ByteBuffer rest = reader.rest();
        long deadline = deadline(timeoutMs);
        while (!rest.hasRemaining()) {
            if (count >= MANY_READ_BYTES) { // no detour through the buffer
                int got = channel.read(ByteBuffer.wrap(target, at, Math.min(count, READ_BYTES_MAX)));
                if (got > 0) {
                    return got;
                }
                requireMore(got);
            } else if (reader.fill(channel)) {
                break;
            }
            await(SelectionKey.OP_READ, deadline);
        }
        int got = Math.min(count, rest.remaining());
        rest.get(target, at, got);
        return got;
    }

    /** The rest of an answer is not read: whoever asks next passes over it, in front of the next answer. */
    void leave(long count) {
        unwanted += count;
    }

    private void skip(long deadline) throws IOException {
        ByteBuffer rest = reader.rest();
        while (unwanted > 0) {
            if (!rest.hasRemaining() && !reader.fill(channel)) {
                await(SelectionKey.OP_READ, deadline);
            }
            int skipped = (int) Math.min(unwanted, rest.remaining());
            rest.position(rest.position() + skipped);
            unwanted -= skipped;
        }
    }

    @Override
    public void close() {
        try (selector; channel) {
            reader.rest().position(reader.rest().limit());
        } catch (IOException gone) {
            // Closing is also how an answer is cancelled; there is nobody left to tell.
            return;
        }
    }

    private static void requireMore(int got) throws EOFException {
        if (got < 0) {
            throw new EOFException("the daemon closed the connection");
        }
    }

    private void write(ByteBuffer frame, long deadline) throws IOException {
        while (frame.hasRemaining()) {
            if (channel.write(frame) == 0) {
                await(SelectionKey.OP_WRITE, deadline);
            }
        }
    }

    /** The answer to this very request, or a refusal of the connection, which the daemon then closes. */
    private Wire.Answer receive(int id, long deadline) throws IOException, DaemonException {
        byte[] body;
        while ((body = reader.next()) == null) {
            if (!reader.fill(channel)) {
                await(SelectionKey.OP_READ, deadline);
            }
        }
        Wire.Answer answer = Wire.answer(body);
        inStep = answer.id() == id;
        if (!inStep && (answer.id() != Wire.CONNECTION_ID || answer.error() == null)) {
            throw new IOException("an answer to request " + answer.id() + ", and " + id + " was asked");
        }
        return answer;
    }

    private void await(int operation, long deadline) throws IOException {
        long leftMs = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        if (Thread.currentThread().isInterrupted()) {
            throw new InterruptedIOException("interrupted while waiting for the daemon");
        }
        if (leftMs <= 0) {
            throw new SocketTimeoutException("the daemon sends nothing");
        }
        channel.keyFor(selector).interestOps(operation);
        selector.select(leftMs);
        selector.selectedKeys().clear();
    }

    /** That many milliseconds from now. */
    static long deadline(long timeoutMs) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    }
}
