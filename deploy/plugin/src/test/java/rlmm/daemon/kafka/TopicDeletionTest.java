package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.io.File;
import java.io.InputStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A topic's deletion, which the broker asks for once and on a thread with other things to do; and retention. */
final class TopicDeletionTest {
    private static final String DELETE = "delete_log_segment_data";
    private static final String UPDATE = "update_remote_log_segment_metadata";
    private static final String LIST = "list_remote_log_segments";
    private static final TopicIdPartition SECOND =
        new TopicIdPartition(ORDERS.topicId(), 1, ORDERS.topic());

    private static RlmmDaemonStorageManager storage(RudeDaemon daemon, Map<String, Object> more) throws Exception {
        RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager();
        storage.configure(daemon.configs(more));
        Wait.until("connected", () -> OutageTest.connected("storage", 9));
        return storage;
    }

    private static RlmmDaemonMetadataManager metadata(RudeDaemon daemon, Map<String, Object> more) throws Exception {
        RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager();
        metadata.configure(daemon.configs(more));
        lead(metadata);
        return metadata;
    }

    private static void lead(RlmmDaemonMetadataManager metadata) throws Exception {
        metadata.onPartitionLeadershipChanges(Set.of(ORDERS, SECOND), Set.of());
        Wait.until("ready", () -> metadata.isReady(ORDERS) && metadata.isReady(SECOND));
    }

    private static <T> CompletableFuture<T> deleting(Callable<T> call) {
        CompletableFuture<T> result = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                result.complete(RemoteLogManager.stopPartitions(call));
            } catch (Throwable error) {
                result.completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        Wait.untilBlocked(thread);
        return result;
    }

    private static Void delete(RlmmDaemonStorageManager storage, TopicIdPartition partition) throws Exception {
        storage.deleteLogSegmentData(Segments.started(partition, 0, 9, 1));
        return null;
    }

    @Test
    void itIsKnownByWhoCallsInEveryBrokerThatIsSupported() throws Exception {
        assertFalse(TopicDeletion.isUnderWay());
        assertTrue(RemoteLogManager.stopPartitions(TopicDeletion::isUnderWay));
        List<URL> oldest = new ArrayList<>();
        for (File jar : new File(System.getProperty("kafka.oldest")).listFiles()) {
            oldest.add(jar.toURI().toURL());
        }
        try (URLClassLoader old = new URLClassLoader(oldest.toArray(URL[]::new), null)) {
            for (ClassLoader kafka : new ClassLoader[]{old, getClass().getClassLoader()}) {
                String file = "org/apache/kafka/server/log/remote/storage/RemoteLogManager.class";
                try (InputStream bytes = kafka.getResourceAsStream(file)) {
                    String names = new String(bytes.readAllBytes(), StandardCharsets.ISO_8859_1);
                    assertTrue(names.contains("stopPartitions") && names.contains("deleteRemoteLogPartition"));
                }
            }
        }
    }

    /** One segment's delete fails for ever; all others of the topic go on. */
    @ParameterizedTest
    @ValueSource(ints = {DaemonException.TIMED_OUT, 203, 204, 300, 0})
    void inRetentionADeleteThatFailedStopsNoOther(int code) throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonStorageManager storage = storage(daemon, Map.of())) {
            daemon.answer(DELETE, id -> {
                asked.incrementAndGet();
                return RudeDaemon.error(id, code);
            });
            for (int i = 0; i < 3; i++) {
                assertThrows(RemoteStorageException.class, () -> delete(storage, ORDERS));
                assertThrows(RemoteStorageException.class, () -> delete(storage, SECOND));
            }
            assertEquals(6, asked.get());
            daemon.answer(null, null);
            delete(storage, ORDERS);
        }
    }

    @Test
    void inRetentionAMarkThatNobodyAnsweredStopsNoOther() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon();
             RlmmDaemonMetadataManager metadata = metadata(daemon, Map.of("metadata.timeout.ms", 300))) {
            daemon.answer(UPDATE, id -> new byte[0]);
            var unanswered = mark(metadata, ORDERS);
            Wait.until("its deadline passed, and others were answered", () -> {
                metadata.isReady(ORDERS);
                return unanswered.isDone();
            });
            assertInstanceOf(ReplicaNotAvailableException.class,
                assertThrows(ExecutionException.class, unanswered::get).getCause());
            daemon.answer(null, null);
            mark(metadata, ORDERS).get(30, TimeUnit.SECONDS);
        }
    }

    private static CompletableFuture<Void> mark(RlmmDaemonMetadataManager metadata, TopicIdPartition partition)
            throws RemoteStorageException {
        RemoteLogSegmentMetadata segment = Segments.started(partition, 0, 9, 1);
        return metadata.updateRemoteLogSegmentMetadata(
            Segments.update(segment, Optional.empty(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED));
    }

    @Test
    void aDeletionsPartitionThatNobodyAnsweredIsRefusedAtOnceAndNoOtherIs() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonStorageManager storage = storage(daemon, Map.of())) {
            daemon.answer(DELETE, id -> {
                asked.incrementAndGet();
                return RudeDaemon.error(id, DaemonException.TIMED_OUT);
            });
            for (int i = 0; i < 2; i++) {
                assertThrows(RemoteStorageException.class,
                    () -> RemoteLogManager.stopPartitions(() -> delete(storage, ORDERS)));
            }
            assertEquals(1, asked.get());
            assertThrows(RemoteStorageException.class,
                () -> RemoteLogManager.stopPartitions(() -> delete(storage, SECOND)));
            assertEquals(2, asked.get());
            assertThrows(RemoteStorageException.class, () -> delete(storage, ORDERS));
            assertEquals(3, asked.get(), "retention of the same partition asks");
        }
    }

    /** Access that is denied is as good as answered. */
    @Test
    void aDeletionThatIsRefusedForAReasonRefusesNothingElse() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonStorageManager storage = storage(daemon, Map.of())) {
            daemon.answer(DELETE, id -> {
                asked.incrementAndGet();
                return RudeDaemon.error(id, 203);
            });
            for (int i = 0; i < 3; i++) {
                assertThrows(RemoteStorageException.class,
                    () -> RemoteLogManager.stopPartitions(() -> delete(storage, ORDERS)));
            }
            assertEquals(3, asked.get());
        }
    }

    @Test
    void afterAListingOfADeletionThatNobodyAnsweredThatPartitionsMarksAreRefused() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon();
             RlmmDaemonMetadataManager metadata = metadata(daemon, Map.of("metadata.timeout.ms", 300))) {
            daemon.answer(LIST, id -> new byte[0]);
            CompletableFuture<?> listing = deleting(() -> metadata.listRemoteLogSegments(ORDERS));
            Wait.until("its deadline passed, and others were answered", () -> {
                metadata.isReady(ORDERS);
                return listing.isDone();
            });
            assertThrows(ExecutionException.class, listing::get);
            String why = assertThrows(ReplicaNotAvailableException.class,
                () -> RemoteLogManager.stopPartitions(() -> mark(metadata, ORDERS))).getMessage();
            assertTrue(why.contains("is being deleted"), why);
            RemoteLogManager.stopPartitions(() -> mark(metadata, SECOND)).get(30, TimeUnit.SECONDS);
        }
    }

    /** Each of the four things that the broker does comes while the daemon is away, and is not given up. */
    @Test
    void aDeletionOutlastsARestartOfTheDaemonWhereverThatMeetsIt() throws Exception {
        Map<String, Object> patient = Map.of("delete.hold.ms", 60_000);
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager();
             RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            metadata.configure(daemon.configs(patient), () -> 1);
            storage.configure(daemon.configs(patient));
            lead(metadata);
            Segments.OnDisk segment = Segments.write(daemon.logDir(), ORDERS, 0, 1);
            RemoteLogSegmentMetadata started = segment.metadata();
            metadata.addRemoteLogSegmentMetadata(started).get(10, TimeUnit.SECONDS);
            var custom = storage.copyLogSegmentData(started, segment.data());
            metadata.updateRemoteLogSegmentMetadata(Segments.update(
                started, custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)).get(10, TimeUnit.SECONDS);

            var listing = whileAway(daemon, metadata, () -> metadata.listRemoteLogSegments(ORDERS));
            RemoteLogSegmentMetadata listed = listing.next();
            assertEquals(started.remoteLogSegmentId(), listed.remoteLogSegmentId());
            for (RemoteLogSegmentState state : List.of(
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)) {
                whileAway(daemon, metadata, () -> metadata.updateRemoteLogSegmentMetadata(
                    Segments.update(listed, listed.customMetadata(), state)).get(60, TimeUnit.SECONDS));
                if (state == RemoteLogSegmentState.DELETE_SEGMENT_STARTED) {
                    whileAway(daemon, metadata, () -> {
                        storage.deleteLogSegmentData(listed);
                        return null;
                    });
                }
            }
            assertFalse(metadata.listRemoteLogSegments(ORDERS).hasNext());
        }
    }

    private static <T> T whileAway(DaemonProcess daemon, RlmmDaemonMetadataManager metadata, Callable<T> call)
            throws Exception {
        daemon.kill();
        Wait.until("the loss is noticed", () -> !metadata.isReady(ORDERS) && !OutageTest.connected("storage"));
        CompletableFuture<T> held = deleting(call);
        assertFalse(held.isDone());
        daemon.start();
        return held.get(60, TimeUnit.SECONDS);
    }

    /** A topic of many partitions, and nobody comes: the thread has other things to do. */
    @Test
    void allOfADeletionsPartitionsTogetherAreHeldOnlyOnce() throws Exception {
        try (RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            metadata.configure(Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "c",
                PluginConfig.SOCKET_PATH, "/nowhere/s", PluginConfig.SINGLE_BROKER_CHECK, "false",
                "delete.hold.ms", "1000"));
            long begun = System.nanoTime();
            for (int i = 0; i < 50; i++) {
                TopicIdPartition partition = new TopicIdPartition(ORDERS.topicId(), i, ORDERS.topic());
                assertThrows(ReplicaNotAvailableException.class,
                    () -> RemoteLogManager.stopPartitions(() -> metadata.listRemoteLogSegments(partition)));
            }
            long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
            assertTrue(tookMs >= 1_000, tookMs + " ms");
            assertTrue(tookMs < 25_000, tookMs + " ms, of 50 s if each were held");
        }
    }

    @Test
    void aManagerThatIsClosedHoldsNoDeletionAnyLonger() throws Exception {
        try (RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            metadata.configure(Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "c",
                PluginConfig.SOCKET_PATH, "/nowhere/s", PluginConfig.SINGLE_BROKER_CHECK, "false",
                "delete.hold.ms", "60000"));
            var mark = RemoteLogManager.stopPartitions(() -> mark(metadata, ORDERS));
            CompletableFuture<?> listing = deleting(() -> metadata.listRemoteLogSegments(ORDERS));
            assertFalse(mark.isDone() || listing.isDone());
            metadata.close();
            assertThrows(ExecutionException.class, () -> mark.get(20, TimeUnit.SECONDS));
            assertThrows(ExecutionException.class, () -> listing.get(20, TimeUnit.SECONDS));
        }
    }

    /**
     * As of a partition of many segments, on a log that takes a moment for each: all are done, though the last ones
     * stand in line for longer than their deadline. Few are in flight, so that none waits for long once it is sent.
     */
    @Test
    void allMarksOfALargePartitionAreAnsweredHoweverLongTheyStandInLine() throws Exception {
        int count = 12_000;
        long deadlineMs = 2_000;
        var said = new AtomicBoolean();
        try (RudeDaemon daemon = new RudeDaemon();
             RlmmDaemonMetadataManager metadata = metadata(daemon, Map.of(
                 "metadata.timeout.ms", deadlineMs, "requests.in.flight.max", 16))) {
            daemon.answer(UPDATE, id -> {
                LockSupport.parkNanos(said.get() ? 250_000 : 1_000_000);
                return RudeDaemon.answer(id, packer -> packer.packNil());
            });
            List<CompletableFuture<Void>> marks = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                marks.add(mark(metadata, ORDERS));
            }
            said.set(true);
            long begun = System.nanoTime();
            CompletableFuture.allOf(marks.toArray(CompletableFuture[]::new)).get(100, TimeUnit.SECONDS);
            long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
            assertTrue(tookMs > deadlineMs, tookMs + " ms: too quick to mean anything");
        }
    }
}
