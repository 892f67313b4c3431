package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.metrics.Monitorable;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.msgpack.core.MessagePacker;
import org.msgpack.value.Value;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * KIP-405's remote log metadata, kept by the RLMM daemon beside this broker.
 *
 * <p>Loads on Kafka 4.1 and later. Nothing blocks longer than {@code metadata.timeout.ms}; with no daemon there,
 * reads end after {@code hold.ms} and writes at once, both with ReplicaNotAvailableException.
 *
 * <p>Not final because {@link RlmmDaemonMetadataManagerWithCallback} adds an interface that 4.1 lacks.
 */
public class RlmmDaemonMetadataManager implements RemoteLogMetadataManager, Monitorable {
    private static final Logger LOG = LoggerFactory.getLogger(RlmmDaemonMetadataManager.class);

    private static final String LIST = "list_remote_log_segments";
    private static final String LOOK_UP = "remote_log_segment_metadata";

    private final Records records = new Records();
    private final Assignment assignment = new Assignment();
    private volatile Running running;
    private volatile boolean closed;

    /** Everything that exists from {@code configure} to {@code close}. */
    private record Running(
        PluginMetrics metrics, Connection connection, Caller caller, ReadyAhead ahead, RecentSegments recent,
        SingleBrokerCheck check, FailFast failFast, Allowance deleteHold, InsistentWrites insistent,
        ExecutorService completer, long timeoutMs, long readyTimeoutMs, long holdMs) { }

    /** Called by the class loader that the broker made for {@code remote.log.metadata.manager.class.path}. */
    public RlmmDaemonMetadataManager() { }

    /**
     * Starts connecting and returns at once; a daemon that is away does not keep the broker from starting. A second
     * call, which brokers make with an empty map, does nothing.
     */
    @Override
    public final synchronized void configure(Map<String, ?> configs) {
        Objects.requireNonNull(configs, "configs");
        if (running != null || closed) {
            LOG.debug("configured already");
            return;
        }
        PluginConfig config = new PluginConfig(configs, true);
        running = start(config, new ClusterBrokers(config), SingleBrokerCheck.REPEAT_MS);
    }

    /** As {@link #configure}, with somebody else to ask about the cluster. */
    final void configure(Map<String, ?> configs, SingleBrokerCheck.BrokerCount count) {
        configure(configs, count, SingleBrokerCheck.REPEAT_MS);
    }

    /** And asked as often. */
    final synchronized void configure(Map<String, ?> configs, SingleBrokerCheck.BrokerCount count, long repeatMs) {
        running = start(new PluginConfig(configs, true), count, repeatMs);
    }

    private Running start(PluginConfig config, SingleBrokerCheck.BrokerCount count, long repeatMs) {
        PluginMetrics metrics = new PluginMetrics(Greeting.METADATA, config.brokerId());
        WarmUp.begin(config, metrics);
        WholeJar.begin("rlmm-daemon-classes-" + config.brokerId());
        Connection connection = new Connection(config, Greeting.METADATA, new Owner(), metrics);
        Caller caller = new Caller(connection, metrics, config.integer(PluginConfig.HOLD_MS));
        String cannotAsk = config.bootstrap() != null ? null
            : "the daemon keeps a log for one broker (event_log.single_broker), and how many this cluster has can't be asked: set"
                + " remote.log.metadata.manager.listener.name in server.properties, or vouch for it with"
                + " rlmm.config." + PluginConfig.SINGLE_BROKER_CHECK + "=false";
        Allowance deleteHold = new Allowance(config.integer(PluginConfig.DELETE_HOLD_MS));
        Running made = new Running(metrics, connection, caller,
            new ReadyAhead(connection, config.integer(PluginConfig.IN_FLIGHT_MAX), ReadyAhead.USED_MS),
            new RecentSegments(config.integer(PluginConfig.LOOKUP_REUSE_MS)),
            new SingleBrokerCheck(count, cannotAsk, config.singleBrokerCheck(), repeatMs),
            new FailFast(config.integer(PluginConfig.DELETE_FAIL_FAST_MS), FailFast.LOST_MS_MAX),
            deleteHold, new InsistentWrites(caller, deleteHold, "rlmm-daemon-deletes-" + config.brokerId()),
            Executors.newSingleThreadExecutor(new DaemonThreads("rlmm-daemon-completer-" + config.brokerId())),
            config.integer(PluginConfig.METADATA_TIMEOUT_MS), config.integer(PluginConfig.READY_TIMEOUT_MS),
            config.integer(PluginConfig.HOLD_MS));
        running = made; // the IO thread may greet before this method returns
        connection.start();
        return made;
    }

    private final class Owner implements Connection.Owner {
        @Override
        public void onGreeted(Greeting.Welcome welcome) {
            Running now = running;
            if (now != null) {
                assignment.greeted(now.connection);
                now.check.begin(welcome.eventLog());
            }
        }

        @Override
        public void onTick() {
            Running now = running;
            if (now != null) {
                assignment.tick(now.connection);
            }
        }

        @Override
        public void onLost() {
            Running now = running;
            if (now != null) {
                now.ahead.lost();
                now.recent.lost();
            }
        }
    }

    // --- writes

    @Override
    public final CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata metadata)
            throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        if (metadata.state() != RemoteLogSegmentState.COPY_SEGMENT_STARTED) {
            throw new IllegalArgumentException("a segment is added in state COPY_SEGMENT_STARTED, not " + metadata.state());
        }
        return write("add_remote_log_segment_metadata", metadata, false);
    }

    @Override
    public final CompletableFuture<Void> updateRemoteLogSegmentMetadata(RemoteLogSegmentMetadataUpdate update)
            throws RemoteStorageException {
        Objects.requireNonNull(update, "update");
        if (update.state() == RemoteLogSegmentState.COPY_SEGMENT_STARTED) {
            throw new IllegalArgumentException("a segment is added, not updated, to COPY_SEGMENT_STARTED");
        }
        boolean deletes = update.state() != RemoteLogSegmentState.COPY_SEGMENT_FINISHED;
        return write("update_remote_log_segment_metadata", update, deletes && TopicDeletion.isUnderWay());
    }

    @Override
    public final CompletableFuture<Void> putRemotePartitionDeleteMetadata(RemotePartitionDeleteMetadata metadata)
            throws RemoteStorageException {
        Objects.requireNonNull(metadata, "metadata");
        return write("put_remote_partition_delete_metadata", metadata, false);
    }

    /** {@code ofDeletion}: of a topic's, whose thread waits for it under a lock, and which says it once. */
    private CompletableFuture<Void> write(String method, RemoteLogMetadata metadata, boolean ofDeletion)
            throws RemoteStorageException {
        Running now = running();
        TopicIdPartition partition = metadata.topicIdPartition();
        try {
            if (ofDeletion && now.failFast.refuses(partition)) {
                now.metrics.deletesRefused.incrementAndGet();
                throw DaemonException.overloaded(FailFast.REFUSED);
            }
            now.check.require();
            byte[] record = records.encode(metadata);
            Wire.Params params = packer -> {
                packer.packArrayHeader(2);
                Wire.pack(packer, record);
                packer.packLong(Caller.tellMs(now.timeoutMs));
            };
            long begun = System.nanoTime();
            CompletableFuture<List<Wire.Answer>> answer = ofDeletion
                ? now.insistent.send(method, params, now.timeoutMs) : now.caller.send(method, params, now.timeoutMs);
            Set<TopicIdPartition> changing = Set.of(partition);
            // Behind it, not before: a look-up may be answered just before the record takes effect.
            return translated(now, answer.whenComplete((pages, failure) -> {
                now.recent.forget(changing);
                if (ofDeletion && failure != null && FailFast.isSilence(Caller.daemonException(failure))) {
                    now.failFast.silent(partition, System.nanoTime() - begun);
                }
            }));
        } catch (DaemonException error) {
            throw Errors.rethrow(Errors.ofMetadata(error));
        }
    }

    /** Completed on a thread of its own: whoever continues there must not hold up the connection. */
    private static CompletableFuture<Void> translated(Running now, CompletableFuture<List<Wire.Answer>> answer) {
        CompletableFuture<Void> result = new CompletableFuture<>();
        answer.whenComplete((pages, failure) -> {
            if (failure == null) {
                complete(now, () -> result.complete(null));
            } else {
                DaemonException error = Caller.daemonException(failure);
                complete(now, () -> result.completeExceptionally(Errors.ofMetadata(error)));
            }
        });
        return result;
    }

    private static void complete(Running now, Runnable completion) {
        if (now.completer.isShutdown()) { // closing: the future completes all the same
            completion.run();
        } else {
            try {
                now.completer.execute(completion);
            } catch (java.util.concurrent.RejectedExecutionException closing) {
                completion.run();
            }
        }
    }

    // --- reads

    @Override
    public final Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(
            TopicIdPartition partition, int epochForOffset, long offset) throws RemoteStorageException {
        Objects.requireNonNull(partition, "partition");
        Running now = running();
        RecentSegments recent = now.recent;
        Optional<RemoteLogSegmentMetadata> known =
            now.connection.isOpen() ? recent.of(partition, epochForOffset, offset) : null;
        if (known != null) {
            now.metrics.lookupsReused.incrementAndGet();
            return known;
        }
        long asking = recent.asking();
        long asked = System.nanoTime();
        Records.FoundUntil found = records.maybeUntil(lookUp(now, partition, epochForOffset, offset));
        if (found == null) {
            return Optional.empty();
        }
        recent.keep(partition, epochForOffset, offset, found.until(), found.segment(), asked, asking);
        return Optional.of(found.segment());
    }

    private static Value lookUp(Running now, TopicIdPartition partition, int epoch, long offset)
            throws RemoteStorageException {
        try {
            requireForRead(now, LOOK_UP);
            return now.caller.read(LOOK_UP, false, packer -> {
                packer.packArrayHeader(5);
                Wire.pack(packer, partition);
                packer.packInt(epoch).packLong(offset).packLong(Caller.tellMs(now.timeoutMs)).packBoolean(true);
            }, now.timeoutMs).get(0);
        } catch (DaemonException error) {
            throw Errors.rethrow(Errors.ofMetadata(error));
        }
    }

    @Override
    public final Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(
            TopicIdPartition partition, int epoch, long offset) throws RemoteStorageException {
        return records.maybe(read("next_segment_with_txn_index", partition, packer ->
            packer.packInt(epoch).packLong(offset), 2).get(0));
    }

    @Override
    public final Optional<Long> highestOffsetForEpoch(TopicIdPartition partition, int leaderEpoch)
            throws RemoteStorageException {
        Value offset = read("highest_offset_for_epoch", partition, packer -> packer.packInt(leaderEpoch), 1).get(0);
        return Records.read(() ->
            offset.isNilValue() ? Optional.empty() : Optional.of(offset.asIntegerValue().asLong()));
    }

    /**
     * All segments: what expiration asks for, which comes back, and a topic's deletion, which does not: partition after
     * partition, on the broker's metadata-publishing thread and under its lock.
     */
    @Override
    public final Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition)
            throws RemoteStorageException {
        Objects.requireNonNull(partition, "partition");
        if (!TopicDeletion.isUnderWay()) {
            return records.all(read(LIST, partition, MessagePacker::packNil, 1));
        }
        Running now = running();
        try {
            return records.all(listOnce(now, partition));
        } catch (DaemonException error) {
            throw Errors.rethrow(Errors.ofMetadata(error));
        }
    }

    private static List<Value> listOnce(Running now, TopicIdPartition partition) throws DaemonException {
        if (now.failFast.refuses(partition)) {
            throw DaemonException.overloaded(FailFast.REFUSED);
        }
        requireForRead(now, LIST);
        long begun = System.nanoTime();
        try {
            return now.caller.insist(LIST, true, params(now, partition, MessagePacker::packNil, 1), now.timeoutMs,
                now.deleteHold);
        } catch (DaemonException error) {
            if (FailFast.isSilence(error)) {
                now.failFast.silent(partition, System.nanoTime() - begun);
            }
            throw error;
        }
    }

    @Override
    public final Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition, int leaderEpoch)
            throws RemoteStorageException {
        return records.all(read(LIST, partition, packer -> packer.packInt(leaderEpoch), 1));
    }

    @Override
    public final long remoteLogSize(TopicIdPartition partition, int leaderEpoch) throws RemoteStorageException {
        Value size = read("remote_log_size", partition, packer -> packer.packInt(leaderEpoch), 1).get(0);
        return Records.read(() -> size.asIntegerValue().asLong());
    }

    private List<Value> read(String method, TopicIdPartition partition, Wire.Params more, int moreFields)
            throws RemoteStorageException {
        Objects.requireNonNull(partition, "partition");
        Running now = running();
        try {
            requireForRead(now, method);
            return now.caller.read(
                method, method.equals(LIST), params(now, partition, more, moreFields), now.timeoutMs);
        } catch (DaemonException error) {
            throw Errors.rethrow(Errors.ofMetadata(error));
        }
    }

    private static Wire.Params params(Running now, TopicIdPartition partition, Wire.Params more, int moreFields) {
        return packer -> {
            packer.packArrayHeader(moreFields + 2);
            Wire.pack(packer, partition);
            more.pack(packer);
            packer.packLong(Caller.tellMs(now.timeoutMs));
        };
    }

    /** A check that is still running is one more way of being not ready, so it is held as well. */
    private static void requireForRead(Running now, String method) throws DaemonException {
        try {
            now.check.require();
        } catch (DaemonException notYet) {
            now.caller.hold(method, now.holdMs, false);
            now.check.require();
        }
    }

    /**
     * Never throws and returns within {@code ready.timeout.ms}: the broker asks outside of its tasks' try block, where
     * an exception ends the task until the next leadership change. A yes may be a moment old: {@link ReadyAhead}.
     */
    @Override
    public final boolean isReady(TopicIdPartition partition) {
        Running now = running;
        if (now == null || partition == null || !now.connection.isOpen()) {
            return false;
        }
        try {
            now.check.require();
            long begun = System.nanoTime();
            if (now.ahead.isKnown(partition)) {
                now.metrics.called("is_ready", System.nanoTime() - begun, true);
                return true;
            }
            boolean ready = now.caller.isYes(
                "is_ready", new ReadyAhead.Question(partition, now.readyTimeoutMs), now.readyTimeoutMs);
            if (ready) {
                now.ahead.askOthers();
            }
            return ready;
        } catch (DaemonException | RuntimeException | Error error) {
            LOG.debug("isReady({})", partition, error);
            return false;
        }
    }

    // --- announcements

    @Override
    public final void onPartitionLeadershipChanges(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) {
        requireNonNulls(leaders, "leaders");
        requireNonNulls(followers, "followers");
        Running now = runningOrNotYet();
        if (now == null) {
            assignment.changed(null, leaders, followers);
            return;
        }
        now.recent.forget(leaders);
        now.recent.forget(followers);
        now.ahead.announced(leaders);
        now.ahead.announced(followers);
        assignment.changed(now.connection, leaders, followers);
    }

    @Override
    public final void onStopPartitions(Set<TopicIdPartition> partitions) {
        requireNonNulls(partitions, "partitions");
        Running now = runningOrNotYet();
        if (now == null) {
            assignment.stopped(null, partitions);
            return;
        }
        now.recent.forget(partitions);
        now.ahead.stopped(partitions);
        assignment.stopped(now.connection, partitions);
    }

    /** Before any of it is taken up: what is announced is said again on each connection. */
    private static void requireNonNulls(Set<TopicIdPartition> partitions, String name) {
        for (TopicIdPartition each : Objects.requireNonNull(partitions, name)) {
            Objects.requireNonNull(each, name);
        }
    }

    /** Null before {@code configure}: what is announced by then is said with the first connection. */
    private Running runningOrNotYet() {
        Running now = running;
        return now != null || closed ? running() : null;
    }

    // --- the rest

    /** From brokers that load the plugin from their own class path; one with a class path of its own gets no such call. */
    @Override
    public final void withPluginMetrics(org.apache.kafka.common.metrics.PluginMetrics brokers) {
        Running now = running;
        if (now != null) {
            now.metrics.publishTo(new KafkaMetrics(brokers));
        }
    }

    /** Whatever was asked of a broker that did not serve yet is asked again now. */
    final void brokerIsReady() {
        Running now = running;
        if (now != null && now.connection.isOpen()) {
            now.check.hurry();
        }
    }

    /** As Kafka's own manager says it of one that was not configured, or is closed. */
    private Running running() {
        Running now = running;
        if (now == null) {
            throw new IllegalStateException("the plugin is not configured, or closed");
        }
        return now;
    }

    /** Idempotent; whatever is in flight fails first. */
    @Override
    public final void close() throws IOException {
        Running now;
        synchronized (this) {
            closed = true;
            now = running;
            running = null;
        }
        if (now != null) {
            now.check.close();
            now.insistent.close();
            now.connection.close();
            now.completer.shutdown();
            now.metrics.close();
        }
    }
}
