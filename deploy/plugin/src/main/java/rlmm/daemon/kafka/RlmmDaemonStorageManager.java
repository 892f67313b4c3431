package rlmm.daemon.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.common.metrics.Monitorable;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.msgpack.core.MessagePacker;
import org.msgpack.value.Value;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * KIP-405's segments, moved by the RLMM daemon beside this broker. Copies are paths, not bytes: the daemon reads the
 * broker's files itself. Fetches come back over connections of their own.
 *
 * <p>Works beside any RemoteLogMetadataManager, provided that the daemon follows the same metadata.
 */
public final class RlmmDaemonStorageManager implements RemoteStorageManager, Monitorable {
    private static final String DELETE = "delete_log_segment_data";
    private static final Logger LOG = LoggerFactory.getLogger(RlmmDaemonStorageManager.class);

    private final Records records = new Records();
    private volatile Running running;
    private boolean closed;

    /** Everything that exists from {@code configure} to {@code close}. */
    private record Running(
        PluginMetrics metrics, Connection connection, Caller caller, BulkPool pool, FailFast failFast, Allowance deleteHold,
        long holdMs, long copyTimeoutMs, long deleteTimeoutMs, long fetchTimeoutMs, long indexTimeoutMs) { }

    /** Called by the class loader that the broker made for {@code remote.log.storage.manager.class.path}. */
    public RlmmDaemonStorageManager() { }

    /** Starts connecting and returns at once. A second call does nothing. */
    @Override
    public synchronized void configure(Map<String, ?> configs) {
        Objects.requireNonNull(configs, "configs");
        if (running != null || closed) {
            LOG.debug("configured already");
            return;
        }
        PluginConfig config = new PluginConfig(configs, false);
        PluginMetrics metrics = new PluginMetrics(Greeting.STORAGE, config.brokerId());
        Connection connection = new Connection(config, Greeting.STORAGE, new Owner(), metrics);
        long holdMs = config.integer(PluginConfig.HOLD_MS);
        running = new Running(metrics, connection, new Caller(connection, metrics, holdMs),
            new BulkPool(config, metrics),
            new FailFast(config.integer(PluginConfig.DELETE_FAIL_FAST_MS), FailFast.LOST_MS_MAX),
            new Allowance(config.integer(PluginConfig.DELETE_HOLD_MS)),
            holdMs, config.integer(PluginConfig.COPY_TIMEOUT_MS), config.integer(PluginConfig.DELETE_TIMEOUT_MS),
            config.integer(PluginConfig.FETCH_TIMEOUT_MS), config.integer(PluginConfig.INDEX_TIMEOUT_MS));
        connection.start();
        metrics.publish();
        WholeJar.begin("rlmm-daemon-classes-" + config.brokerId()); // of its own: the broker loads each manager apart
    }

    private final class Owner implements Connection.Owner {
        @Override
        public void onGreeted(Greeting.Welcome welcome) {
            Running now = running;
            if (now != null) {
                now.connection.open();
            }
        }

        @Override
        public void onTick() {
            Running now = running;
            if (now != null) {
                now.pool.tick();
            }
        }

        @Override
        public void onLost() {
            Running now = running;
            if (now != null) {
                now.pool.forgetAll();
            }
        }
    }

    // --- copy and delete

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
            throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        Objects.requireNonNull(data, "data");
        Running now = runningToWrite();
        byte[] record = records.encode(metadata);
        byte[] checkpoint = bytes(data.leaderEpochIndex());
        try {
            if (!now.connection.isOpen()) { // a broker that has just started would have to roll back for nothing
                now.caller.hold("copy_log_segment_data", now.holdMs, true);
            }
            Value stored = now.caller.call("copy_log_segment_data", false, packer -> {
                packer.packArrayHeader(3);
                Wire.pack(packer, record);
                packFiles(packer, data, checkpoint);
                packer.packLong(Caller.tellMs(now.copyTimeoutMs));
            }, now.copyTimeoutMs).get(0);
            return Records.read(() -> stored.isNilValue()
                ? Optional.empty() : Optional.of(new CustomMetadata(stored.asBinaryValue().asByteArray())));
        } catch (DaemonException error) {
            throw Errors.ofCopy(error);
        }
    }

    private static void packFiles(MessagePacker packer, LogSegmentData data, byte[] checkpoint) throws IOException {
        packer.packArrayHeader(6);
        packer.packString(absolute(data.logSegment())).packString(absolute(data.offsetIndex()));
        packer.packString(absolute(data.timeIndex())).packString(absolute(data.producerSnapshotIndex()));
        Wire.pack(packer, checkpoint);
        Wire.packOrNil(packer, data.transactionIndex().map(RlmmDaemonStorageManager::absolute).orElse(null));
    }

    private static String absolute(Path path) {
        return path.toAbsolutePath().toString();
    }

    /** The buffer is shared: whoever moves its position leaves others an empty checkpoint, which nobody notices. */
    private static byte[] bytes(ByteBuffer shared) {
        ByteBuffer own = shared.duplicate();
        byte[] copy = new byte[own.remaining()];
        own.get(copy);
        return copy;
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        Running now = runningToWrite();
        now.pool.forget(metadata.remoteLogSegmentId().id());
        byte[] record = records.encode(metadata);
        Wire.Params params = packer -> {
            packer.packArrayHeader(2);
            Wire.pack(packer, record);
            packer.packLong(Caller.tellMs(now.deleteTimeoutMs));
        };
        try {
            if (TopicDeletion.isUnderWay()) {
                deleteOnce(now, metadata.topicIdPartition(), params);
            } else {
                now.caller.call(DELETE, false, params, now.deleteTimeoutMs);
            }
        } catch (DaemonException error) {
            throw Errors.ofDelete(error);
        }
    }

    /** Of a topic's deletion, which never comes back to it, and must not hold the broker's other changes up for long. */
    private static void deleteOnce(Running now, TopicIdPartition partition, Wire.Params params) throws DaemonException {
        if (now.failFast.refuses(partition)) {
            now.metrics.deletesRefused.incrementAndGet();
            throw DaemonException.overloaded(FailFast.REFUSED);
        }
        long begun = System.nanoTime();
        try {
            now.caller.insist(DELETE, false, params, now.deleteTimeoutMs, now.deleteHold);
        } catch (DaemonException error) {
            if (FailFast.isSilence(error)) {
                now.failFast.silent(partition, System.nanoTime() - begun);
            }
            throw error;
        }
    }

    // --- fetch

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int startPosition)
            throws RemoteStorageException {
        return fetchLogSegment(metadata, startPosition, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int startPosition, int endPosition)
            throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        int last = Math.min(endPosition, metadata.segmentSizeInBytes() - 1);
        if (startPosition < 0 || endPosition < startPosition || last < startPosition) {
            throw new IllegalArgumentException("range [" + startPosition + ", " + endPosition + "] of a segment with "
                + metadata.segmentSizeInBytes() + " bytes");
        }
        Running now = running();
        Uuid segment = metadata.remoteLogSegmentId().id();
        BulkCursor parked = now.connection.isOpen() ? now.pool.resume(segment, startPosition, last) : null;
        if (parked != null) {
            return new BulkStream(parked, startPosition);
        }
        byte[] record = records.encode(metadata);
        BulkCursor.Source source = (from, to, mayOpen) -> now.pool.request("fetch_log_segment", packer -> {
            packer.packArrayHeader(5);
            Wire.pack(packer, record);
            packer.packLong(from).packLong(to).packLong(Caller.tellMs(now.fetchTimeoutMs)).packBoolean(mayOpen);
        }, now.fetchTimeoutMs);
        return fetched(now, "fetch_log_segment", false, () -> new BulkStream(BulkCursor.ofSegment(
            now.pool, source, segment, startPosition, last, now.fetchTimeoutMs), startPosition));
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType indexType)
            throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        Objects.requireNonNull(indexType, "indexType");
        Running now = running();
        byte[] record = records.encode(metadata);
        return fetched(now, "fetch_index", indexType == IndexType.TRANSACTION, () ->
            new BulkStream(BulkCursor.ofAnswer(now.pool, now.pool.request("fetch_index", packer -> {
                packer.packArrayHeader(3);
                Wire.pack(packer, record);
                packer.packString(indexType.name()).packLong(Caller.tellMs(now.indexTimeoutMs));
            }, now.indexTimeoutMs), now.indexTimeoutMs), 0));
    }

    @FunctionalInterface
    private interface Opening {
        InputStream open() throws DaemonException;
    }

    /** Held like a look-up: once more when the daemon was away or not ready. */
    private static InputStream fetched(Running now, String method, boolean transactionIndex, Opening opening)
            throws RemoteStorageException {
        long begun = System.nanoTime();
        try {
            try {
                return open(now, method, opening);
            } catch (DaemonException error) {
                long leftMs = now.holdMs - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
                if (!error.mayPassSoon() || leftMs <= 0) {
                    throw error;
                }
                now.caller.hold(method, leftMs, !now.connection.isOpen());
                return open(now, method, opening);
            }
        } catch (DaemonException error) {
            throw Errors.rethrow(Errors.ofFetch(error, transactionIndex));
        }
    }

    /** A daemon whose process is stopped is not asked again and again: each answer would cost a deadline. */
    private static InputStream open(Running now, String method, Opening opening) throws DaemonException {
        if (now.connection.isSilent()) {
            now.metrics.called(method, 0, false);
            throw now.connection.away();
        }
        return opening.open();
    }

    // --- the rest

    /** From brokers that load the plugin from their own class path; one with a class path of its own gets no such call. */
    @Override
    public void withPluginMetrics(org.apache.kafka.common.metrics.PluginMetrics brokers) {
        Running now = running;
        if (now != null) {
            now.metrics.publishTo(new KafkaMetrics(brokers));
        }
    }

    private Running running() {
        Running now = running;
        if (now == null) {
            throw new ReplicaNotAvailableException("the plugin is not configured, or closed");
        }
        return now;
    }

    /** As copies and deletes know it: only from RemoteStorageException does the broker roll back. */
    private Running runningToWrite() throws RemoteStorageException {
        try {
            return running();
        } catch (ReplicaNotAvailableException closed) {
            throw new RemoteStorageException(closed.getMessage(), closed);
        }
    }

    /** Idempotent; calls in flight fail. */
    @Override
    public void close() throws IOException {
        Running now;
        synchronized (this) {
            closed = true;
            now = running;
            running = null;
        }
        if (now != null) {
            now.connection.close();
            now.pool.close();
            now.metrics.close();
        }
    }
}
