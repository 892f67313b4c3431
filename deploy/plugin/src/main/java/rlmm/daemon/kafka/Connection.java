package rlmm.daemon.kafka;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.msgpack.core.MessagePacker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The one connection on which a manager's requests travel, kept up by the one thread that ever touches its channel.
 *
 * <p>Callers only put a {@link Call} into its queue and wait on the future. Every call ends: with an answer, at its
 * deadline, or with the connection. A daemon that takes requests and says nothing at all until the deadline of the first
 * of them, or for {@value #SILENCE_MS} ms if that is longer, is given up like one that is gone: a stopped process costs
 * one deadline, not one per call. While only calls that may take long are in flight, it is asked now and then how it is.
 */
final class Connection implements AutoCloseable, Runnable {
    /** How long nothing may come while something prompt is overdue. */
    static final long SILENCE_MS = 4_000;
    /** So long after it was heard last it is asked, and so long it may take to answer. */
    private static final long BEAT_MS = 3_000;
    private static final long BEAT_TIMEOUT_MS = 10_000;
    /** Of which a daemon can say, without looking anything up, that it is not ready. */
    private static final TopicIdPartition NOBODYS = new TopicIdPartition(Uuid.ZERO_UUID, new TopicPartition("-", 0));
    private static final long GREETING_MS = 5_000;
    private static final long LASTING_MS = 1_000;
    private static final long TICK_MS = 20;
    private static final long IDLE_TICK_MS = 500;
    private static final int BUFFER_BYTES = 256 * 1024;
    private static final int PIECE_BYTES = 32 * 1024;
    private static final long CLOSE_JOIN_MS = 2_000;
    private static final Logger LOG = LoggerFactory.getLogger(Connection.class);

    /** Told by the IO thread; must return at once. */
    interface Owner {
        /** Hello was accepted. Must call {@link Connection#open}, before or after calls of its own. */
        void onGreeted(Greeting.Welcome welcome);

        /** Now and then while open. */
        void onTick();

        /** What the daemon had to say is not to be expected any more. */
        default void onLost() { }
    }

    private final PluginConfig config;
    private final String part;
    private final Owner owner;
    private final PluginMetrics metrics;
    private final Peers peers;
    private final Thread thread;
    private final Selector selector;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition opened = lock.newCondition();
    private final CallQueue calls;
    private final Deque<Integer> cancelled = new ArrayDeque<>();
    private boolean open;
    private volatile boolean closed;
    private volatile boolean silent;

    // The IO thread's own.
    private ByteBuffer sending;
    private int ids;
    /** A prompt request was sent, and nothing has been heard since. */
    private boolean unheard;
    private long patienceEndsNanos;
    private long heardNanos;
    private Call beat;
    private String complaint = "";

    Connection(PluginConfig config, String part, Owner owner, PluginMetrics metrics) {
        this.config = config;
        this.part = part;
        this.owner = owner;
        this.metrics = metrics;
        this.peers = new Peers(config);
        this.calls = new CallQueue(
            config.integer(PluginConfig.IN_FLIGHT_MAX), config.integer(PluginConfig.WAITING_MAX));
        try {
            this.selector = Selector.open();
        } catch (IOException noDescriptors) {
            throw new UncheckedIOException(noDescriptors);
        }
        this.thread = new DaemonThreads("rlmm-daemon-" + part + "-" + config.brokerId()).newThread(this);
    }

    void start() {
        thread.start();
    }

    // --- any thread

    boolean isOpen() {
        lock.lock();
        try {
            return open;
        } finally {
            lock.unlock();
        }
    }

    /** Whether the daemon was given up because it takes requests and answers nothing: its process is stopped. */
    boolean isSilent() {
        return silent;
    }

    /** For good: nothing will be answered any more. */
    boolean isClosed() {
        return closed;
    }

    /** From {@link Owner#onGreeted}: calls are taken from now on. */
    void open() {
        lock.lock();
        try {
            open = !closed;
            opened.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** Waits until calls are taken; false when they still are not. */
    boolean awaitOpen(long timeoutMs) throws InterruptedException {
        long left = TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        lock.lockInterruptibly();
        try {
            while (!open && left > 0 && !closed) {
                left = opened.awaitNanos(left);
            }
            return open;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Queues a call.
     *
     * @throws DaemonException nobody is there or too much waits already; then nothing was or will be sent
     */
    void submit(Call call) throws DaemonException {
        submit(List.of(call));
    }

    /** As {@link #submit(Call)}: all of them or none, and they leave together. */
    void submit(List<Call> more) throws DaemonException {
        lock.lock();
        try {
            if (!open) {
                throw away();
            }
            calls.add(more);
        } finally {
            lock.unlock();
        }
        selector.wakeup();
    }

    /** Why nothing is sent while the connection is not open. */
    DaemonException away() {
        return DaemonException.disconnected("no daemon answers on " + config.socketPath());
    }

    /** As {@link #submit(List)}, from {@link Owner#onGreeted} before {@link #open}: what nobody may speak before. */
    void submitFirst(List<Call> more) throws DaemonException {
        lock.lock();
        try {
            calls.add(more);
        } finally {
            lock.unlock();
        }
        selector.wakeup();
    }

    /** Nobody waits for this any more: the daemon is told, unless it never heard of it. */
    void cancel(Call call, DaemonException reason) {
        lock.lock();
        try {
            if (calls.forget(call)) {
                cancelled.add(call.id);
            }
        } finally {
            lock.unlock();
        }
        selector.wakeup();
        call.future.completeExceptionally(reason);
    }

    @Override
    public void close() {
        closed = true;
        selector.wakeup();
        boolean interrupted = false;
        try {
            thread.join(CLOSE_JOIN_MS);
        } catch (InterruptedException hurried) {
            interrupted = true;
        }
        lose(DaemonException.disconnected("the plugin is closed"));
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    // --- the IO thread

    /** For {@link #start} alone. */
    @Override
    public void run() {
        long pauseMs = config.integer(PluginConfig.RECONNECT_MS);
        while (!closed) {
            boolean greeted = false;
            long begun = System.nanoTime();
            try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
                FrameReader reader = connect(channel);
                greeted = true;
                serve(channel, reader);
            } catch (IOException | DaemonException error) {
                silent = error instanceof DaemonException refusal && refusal.isSilence();
                complain(error, greeted);
            } catch (RuntimeException | Error bug) { // whatever it is, this thread goes on: nobody would start it again
                LOG.error("The connection to the daemon met a bug and is made again", bug);
            } finally {
                lose(DaemonException.disconnected("the connection to the daemon was lost"));
                tellOwner();
            }
            // One that accepts and drops us at once is no better than one that is away.
            boolean lasted = greeted && System.nanoTime() - begun > TimeUnit.MILLISECONDS.toNanos(LASTING_MS);
            pauseMs = lasted
                ? config.integer(PluginConfig.RECONNECT_MS)
                : Math.min(2 * pauseMs, config.integer(PluginConfig.RECONNECT_MAX_MS));
            pause(pauseMs);
        }
        try {
            selector.close();
        } catch (IOException gone) {
            LOG.debug("closing the selector", gone);
        }
    }

    private void tellOwner() {
        try {
            owner.onLost();
        } catch (RuntimeException bug) { // as above
            LOG.error("The loss of the connection to the daemon met a bug", bug);
        }
    }

    private void pause(long boundMs) {
        if (closed) {
            return;
        }
        try {
            selector.select(Math.max(1, ThreadLocalRandom.current().nextLong(boundMs / 2, boundMs + 1)));
        } catch (IOException broken) {
            LOG.warn("waiting before connecting again", broken);
        }
    }

    /** Connects and says hello; returns the reader that holds whatever came behind the answer. */
    private FrameReader connect(SocketChannel channel) throws IOException, DaemonException {
        channel.configureBlocking(false); // a stopped daemon's full queue would hold this thread until it goes on
        channel.connect(UnixDomainSocketAddress.of(config.socketPath()));
        boolean mayNameFiles = mayNameFiles(channel);
        channel.register(selector, SelectionKey.OP_READ);
        sending = Greeting.hello(config, "broker", part);
        FrameReader reader = new FrameReader(BUFFER_BYTES, Wire.FRAME_BYTES_MAX);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(GREETING_MS);
        byte[] body = null;
        while (body == null) {
            if (closed || System.nanoTime() > deadline) {
                throw DaemonException.silent("hello", GREETING_MS);
            }
            if (sending.hasRemaining()) {
                channel.write(sending);
            }
            selector.select(TICK_MS);
            selector.selectedKeys().clear();
            reader.fill(channel);
            body = reader.next();
        }
        welcome(Greeting.welcome(Wire.answer(body)));
        if (!mayNameFiles) {
            LOG.warn("The daemon on {} runs as {}, which is neither this broker's own, root nor rlmm: it may name no"
                + " files. Set rsm.config.{} if that is right", config.socketPath(), peers.nameOf(channel),
                PluginConfig.DAEMON_USER);
        }
        return reader;
    }

    /** Where it names none anyway, a start is not to wait for the question. */
    private boolean mayNameFiles(SocketChannel channel) throws DaemonException {
        return part.equals(Greeting.METADATA) && !peers.areNamed() || peers.mayNameFiles(channel);
    }

    private void welcome(Greeting.Welcome welcome) {
        ids = Greeting.ID;
        heard();
        silent = false;
        beat = null;
        metrics.connected(true);
        LOG.info("Connected to the RLMM daemon {} on {} ({})", welcome.version(), config.socketPath(), part);
        complaint = "";
        if (!welcome.rights().contains("write")) {
            LOG.error("{}", Greeting.adviceOnRights(welcome));
        }
        owner.onGreeted(welcome);
    }

    private void serve(SocketChannel channel, FrameReader reader) throws IOException, DaemonException {
        SelectionKey key = channel.keyFor(selector);
        while (!closed) {
            take(reader);
            send(channel);
            key.interestOps(sending == null
                ? SelectionKey.OP_READ : SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            selector.select(idle() ? IDLE_TICK_MS : TICK_MS);
            selector.selectedKeys().clear();
            if (reader.fill(channel)) {
                heard();
            }
            expire();
            askHowItIs();
            owner.onTick();
        }
    }

    private void heard() {
        unheard = false;
        heardNanos = System.nanoTime();
    }

    /** A copy may be silent for minutes, and so may a daemon that is stopped. */
    private void askHowItIs() {
        boolean asked = beat != null && !beat.future.isDone();
        if (unheard || asked || System.nanoTime() - heardNanos < TimeUnit.MILLISECONDS.toNanos(BEAT_MS)) {
            return;
        }
        lock.lock();
        try {
            if (calls.awaitsSlow()) {
                beat = new Call("is_ready", false, Connection::packNobodys, BEAT_TIMEOUT_MS);
                calls.addFirst(beat);
            }
        } finally {
            lock.unlock();
        }
    }

    private static void packNobodys(MessagePacker packer) throws IOException {
        packer.packArrayHeader(2);
        Wire.pack(packer, NOBODYS);
        packer.packLong(BEAT_TIMEOUT_MS);
    }

    private boolean idle() {
        lock.lock();
        try {
            return calls.isEmpty() && cancelled.isEmpty();
        } finally {
            lock.unlock();
        }
    }

    private void take(FrameReader reader) throws DaemonException {
        byte[] body;
        while ((body = reader.next()) != null) {
            Wire.Answer answer = Wire.answer(body);
            if (answer.id() == Wire.CONNECTION_ID && answer.error() != null) {
                throw answer.error();
            }
            Call call;
            lock.lock();
            try {
                call = calls.asked(answer.id());
            } finally {
                lock.unlock();
            }
            if (call != null && answered(call, answer)) {
                lock.lock();
                try {
                    calls.answered(call, answer.error() != null && answer.error().isRetriable(), System.nanoTime());
                } finally {
                    lock.unlock();
                }
            }
        }
    }

    private static boolean answered(Call call, Wire.Answer answer) throws DaemonException {
        try {
            return call.answered(answer);
        } catch (IOException | RuntimeException broken) { // a page of a listing that is none
            DaemonException garbled = DaemonException.garbled(broken.toString());
            call.future.completeExceptionally(garbled);
            throw garbled;
        }
    }

    /** Sends as much as the socket takes; {@code sending} is null when nothing is left. */
    private void send(SocketChannel channel) throws IOException {
        while (true) {
            if (sending != null) {
                channel.write(sending);
                if (sending.hasRemaining()) {
                    return;
                }
            }
            sending = nextFrames();
            if (sending == null) {
                return;
            }
        }
    }

    /** What waits, up to about {@value #PIECE_BYTES} bytes, in one piece: a call into the kernel costs more than a copy. */
    private ByteBuffer nextFrames() {
        ByteBuffer first = nextFrame();
        ByteBuffer next = first == null ? null : nextFrame();
        if (next == null) {
            return first;
        }
        ByteArrayOutputStream piece = new ByteArrayOutputStream(PIECE_BYTES);
        piece.writeBytes(first.array());
        while (next != null) {
            piece.writeBytes(next.array());
            next = piece.size() < PIECE_BYTES ? nextFrame() : null;
        }
        return ByteBuffer.wrap(piece.toByteArray());
    }

    private ByteBuffer nextFrame() {
        Call call;
        lock.lock();
        try {
            Integer cancel = cancelled.poll();
            if (cancel != null) {
                return Wire.cancel(cancel);
            }
            call = calls.send(ids + 1, System.nanoTime());
            if (call == null) {
                return null;
            }
            ids++;
        } finally {
            lock.unlock();
        }
        if (call.isPrompt() && !unheard) {
            unheard = true;
            long least = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SILENCE_MS);
            // The daemon is told a shorter deadline, so even a write that hangs is heard of before this.
            patienceEndsNanos = least - call.deadlineNanos > 0 ? least : call.deadlineNanos;
        }
        return Wire.request(call.id, call.method, call.params);
    }

    /** Ends calls whose time is up; gives the connection up when the daemon is silent altogether. */
    private void expire() throws DaemonException {
        long now = System.nanoTime();
        List<Call> late;
        lock.lock();
        try {
            late = calls.late(now);
            for (Call call : late) {
                if (call.id != 0) {
                    cancelled.add(call.id);
                }
            }
        } finally {
            lock.unlock();
        }
        for (Call call : late) {
            call.future.completeExceptionally(DaemonException.silent(call.method, call.timeoutMs));
        }
        if (unheard && now - patienceEndsNanos > 0) {
            throw DaemonException.silent("anything", SILENCE_MS);
        }
    }

    private void lose(DaemonException reason) {
        List<Call> lost;
        lock.lock();
        try {
            open = false;
            opened.signalAll();
            lost = calls.drain();
            cancelled.clear();
        } finally {
            lock.unlock();
        }
        sending = null;
        metrics.connected(false);
        lost.forEach(call -> call.future.completeExceptionally(reason));
    }

    /** Once per kind of trouble, not once per attempt. */
    private void complain(Exception error, boolean wasConnected) {
        if (closed) {
            return;
        }
        String what = error instanceof DaemonException refusal
            ? Greeting.advice(config, refusal) : String.valueOf(error.getMessage());
        if (what.equals(complaint)) {
            return;
        }
        complaint = what;
        if (wasConnected) {
            LOG.warn("Lost the RLMM daemon on {}: {}", config.socketPath(), what);
        } else if (error instanceof DaemonException) {
            LOG.error("The RLMM daemon on {} does not serve this broker: {}", config.socketPath(), what);
        } else {
            LOG.warn("No RLMM daemon answers on {}: {}. Is rlmm-daemon.service running, and may this user open the"
                + " socket? Local data is served meanwhile", config.socketPath(), what);
        }
    }
}
