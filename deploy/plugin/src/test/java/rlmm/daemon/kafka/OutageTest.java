package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.EPOCH;

import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.net.SocketException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A daemon that is killed, frozen and started again, and threads that are interrupted meanwhile. */
final class OutageTest {
    private static final TopicIdPartition LED = Segments.partition("led", 0);
    private static final TopicIdPartition LATER = Segments.partition("later", 0);
    private DaemonProcess daemon;
    private RlmmDaemonMetadataManager metadata;
    private RlmmDaemonStorageManager storage;

    @BeforeEach
    void start() throws Exception {
        daemon = DaemonProcess.started();
        Map<String, Object> configs = daemon.configs(Map.of("delete.timeout.ms", 1_000));
        metadata = new RlmmDaemonMetadataManager();
        metadata.configure(configs, () -> 1);
        storage = new RlmmDaemonStorageManager();
        storage.configure(configs);
        metadata.onPartitionLeadershipChanges(Set.of(LED), Set.of());
        Wait.until("ready", () -> metadata.isReady(LED) && connected("storage"));
    }

    @AfterEach
    void end() throws Exception {
        storage.close();
        metadata.close();
        daemon.close();
    }

    private static long connects(String part) throws Exception {
        var server = ManagementFactory.getPlatformMBeanServer();
        var bean = new ObjectName("rlmm.daemon:type=connection,part=" + part + ",broker=7");
        Wait.until("to be seen", () -> server.isRegistered(bean));
        return (long) server.getAttribute(bean, "Connects");
    }

    private RemoteLogSegmentMetadata finished(int records) throws Exception {
        Segments.OnDisk segment = Segments.write(daemon.logDir(), LED, 0, records);
        metadata.addRemoteLogSegmentMetadata(segment.metadata()).get(10, TimeUnit.SECONDS);
        var update = Segments.update(segment.metadata(),
            storage.copyLogSegmentData(segment.metadata(), segment.data()), RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        metadata.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS);
        return segment.metadata().createWithUpdates(update);
    }

    @Test
    void withoutADaemonNothingIsReadyNothingHangsAndNothingIsEmpty() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        daemon.kill();
        Wait.until("the loss is noticed", () -> !metadata.isReady(LED));
        RemoteLogSegmentMetadata segment = Segments.started(LED, 10_000, 10_009, 1);
        for (int i = 0; i < 3; i++) {
            assertThrows(ReplicaNotAvailableException.class, () -> metadata.remoteLogSegmentMetadata(LED, EPOCH, 1));
            assertThrows(ReplicaNotAvailableException.class, () -> metadata.listRemoteLogSegments(LED));
            assertThrows(ReplicaNotAvailableException.class, () -> metadata.highestOffsetForEpoch(LED, EPOCH));
            assertThrows(ReplicaNotAvailableException.class, () -> metadata.addRemoteLogSegmentMetadata(segment));
            assertThrows(ReplicaNotAvailableException.class, () -> storage.fetchLogSegment(stored, 0));
            assertThrows(RemoteStorageException.class, () -> storage.deleteLogSegmentData(stored));
        }
        metadata.onPartitionLeadershipChanges(Set.of(LATER), Set.of());
    }

    @Test
    void aReadIsHeldForAMomentAndAnsweredIfTheDaemonComesMeanwhile() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        Path link = daemon.socket().resolveSibling("link");
        RlmmDaemonMetadataManager patient = new RlmmDaemonMetadataManager();
        try (patient) {
            patient.configure(daemon.configs(Map.of(
                "hold.ms", 10_000, "single.broker.check", "false", "socket.path", link.toString())));
            patient.onPartitionLeadershipChanges(Set.of(LED), Set.of());
            CompletableFuture<Optional<RemoteLogSegmentMetadata>> held = CompletableFuture.supplyAsync(() -> {
                try {
                    return patient.remoteLogSegmentMetadata(LED, EPOCH, stored.startOffset());
                } catch (RemoteStorageException unexpected) {
                    throw new AssertionError(unexpected);
                }
            });
            assertFalse(held.isDone());
            Files.createSymbolicLink(link, daemon.socket());
            assertEquals(Optional.of(stored), held.get(20, TimeUnit.SECONDS));
        } finally {
            Files.deleteIfExists(link);
        }
    }

    @Test
    void aHeldReadEndsWithItsThreadsInterrupt() throws Exception {
        RlmmDaemonMetadataManager patient = new RlmmDaemonMetadataManager();
        try (patient) {
            patient.configure(daemon.configs(Map.of("hold.ms", 10_000)), () -> 1);
            patient.onPartitionLeadershipChanges(Set.of(LED), Set.of());
            Wait.until("ready", () -> patient.isReady(LED));
            daemon.kill();
            Wait.until("the loss is noticed", () -> !patient.isReady(LED));
            CompletableFuture<Exception> outcome = new CompletableFuture<>();
            Thread reader = new Thread(() -> {
                try {
                    patient.highestOffsetForEpoch(LED, EPOCH);
                    outcome.complete(null);
                } catch (Exception error) {
                    outcome.complete(Thread.currentThread().isInterrupted() ? error : null);
                }
            });
            reader.start();
            Wait.until("it is held", () -> reader.getState() == Thread.State.TIMED_WAITING);
            reader.interrupt();
            assertInstanceOf(ReplicaNotAvailableException.class, outcome.get(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void everythingHealsByItselfAndTheFullSetIsAnnouncedAnew() throws Exception {
        RemoteLogSegmentMetadata stored = finished(2);
        daemon.kill();
        Wait.until("the loss is noticed", () -> !metadata.isReady(LED));
        TopicIdPartition stopped = Segments.partition("stopped", 0);
        metadata.onPartitionLeadershipChanges(Set.of(LATER, stopped), Set.of());
        metadata.onStopPartitions(Set.of(stopped));
        daemon.start();
        Wait.until("ready again", () -> metadata.isReady(LED) && metadata.isReady(LATER));
        assertFalse(metadata.isReady(stopped));
        assertEquals(Optional.of(stored), metadata.remoteLogSegmentMetadata(LED, EPOCH, 1));
        assertEquals(stored.segmentSizeInBytes(), readAll(storage.fetchLogSegment(stored, 0)));
        metadata.addRemoteLogSegmentMetadata(Segments.started(LATER, 0, 9, 1)).get(10, TimeUnit.SECONDS);
        assertEquals(2, connects("metadata"));
    }

    /** Said to be a second: printed, for a machine that has other work takes longer. */
    @Test
    void aDaemonThatReturnsIsUsedAgainAtOnce() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        for (int round = 0; round < 3; round++) {
            daemon.kill();
            Wait.until("the loss is noticed", () -> !metadata.isReady(LED) && !connected("storage"));
            daemon.start(); // until somebody takes connections
            long returned = System.nanoTime();
            Wait.until("ready again", () -> metadata.isReady(LED));
            long readyMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - returned);
            assertEquals(Optional.of(stored), metadata.remoteLogSegmentMetadata(LED, EPOCH, 0));
            Wait.until("fetches again", () -> connected("storage"));
            assertEquals(stored.segmentSizeInBytes(), readAll(storage.fetchLogSegment(stored, 0)));
            metadata.addRemoteLogSegmentMetadata(Segments.started(LED, 1_000 + round, 1_000 + round, 1)).get(10, TimeUnit.SECONDS);
            long allMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - returned);
            System.out.printf("ready %d ms after the daemon's return, read and written %d ms after%n", readyMs, allMs);
            assertTrue(allMs < 30_000, allMs + " ms");
        }
    }

    @Test
    void writesInFlightAtAKillAllEnd() throws Exception {
        List<CompletableFuture<Void>> writes = new ArrayList<>();
        for (int i = 0; i < 2_000; i++) {
            writes.add(metadata.addRemoteLogSegmentMetadata(Segments.started(LED, i, i, 1)));
        }
        daemon.kill();
        int failed = 0;
        for (CompletableFuture<Void> write : writes) {
            try {
                write.get(10, TimeUnit.SECONDS);
            } catch (ExecutionException error) {
                assertInstanceOf(ReplicaNotAvailableException.class, error.getCause());
                failed++;
            }
        }
        assertTrue(failed > 0, "the kill came too late to mean anything");
    }

    @Test
    void aStreamCutByAKillIsAnErrorAndNeverAnEnd() throws Exception {
        RemoteLogSegmentMetadata stored = finished(120);
        try (InputStream stream = storage.fetchLogSegment(stored, 0)) {
            stream.readNBytes(1_000);
            daemon.kill();
            assertThrows(ReplicaNotAvailableException.class, stream::readAllBytes);
        }
        assertEquals(1, streams("Broken"));
    }

    @Test
    void whoeverReadsOnAfterARestartOfTheDaemonGetsTheRestFromTheNewOne() throws Exception {
        RemoteLogSegmentMetadata stored = finished(120);
        byte[] whole;
        try (InputStream stream = storage.fetchLogSegment(stored, 0)) {
            whole = stream.readAllBytes();
        }
        InputStream first = storage.fetchLogSegment(stored, 0);
        int at = 4_000_000; // in a window of more bytes than are on their way
        first.readNBytes(at);
        daemon.kill();
        Wait.until("the loss is noticed", () -> !connected("storage"));
        daemon.start();
        Wait.until("back", () -> metadata.isReady(LED) && connected("storage"));
        long resumed = streams("Resumed");
        first.close();
        try (InputStream second = storage.fetchLogSegment(stored, at - 500)) {
            assertArrayEquals(Arrays.copyOfRange(whole, at - 500, whole.length), second.readAllBytes());
        }
        assertEquals(resumed + 1, streams("Resumed"));
    }

    @Test
    void aKilledOrStoppedDaemonsParkedStreamsAreForgottenWithIt() throws Exception {
        RemoteLogSegmentMetadata stored = finished(120);
        byte[] whole = storage.fetchLogSegment(stored, 0).readAllBytes();
        storage.fetchLogSegment(stored, 10).close();
        assertEquals(1, streams("Parked"));
        daemon.kill();
        Wait.until("it is forgotten", () -> streams("Parked") == 0);
        daemon.start();
        Wait.until("back", () -> metadata.isReady(LED) && connected("storage"));
        try (InputStream again = storage.fetchLogSegment(stored, 10)) {
            assertArrayEquals(Arrays.copyOfRange(whole, 10, whole.length), again.readAllBytes());
        }
        storage.fetchLogSegment(stored, 10).close();
        daemon.freeze();
        assertThrows(RemoteStorageException.class, () -> storage.deleteLogSegmentData(Segments.started(LED, 9, 9, 1)));
        Wait.until("it is given up, and the stream", () -> !connected("storage") && streams("Parked") == 0);
        for (Use use : List.<Use>of(() -> storage.fetchLogSegment(stored, 1_000_000),
                () -> storage.fetchIndex(stored, IndexType.LEADER_EPOCH))) {
            String why = assertThrows(ReplicaNotAvailableException.class, use::please).getMessage();
            assertTrue(why.contains("no daemon answers"), why + ": it was asked all the same");
        }
        daemon.thaw();
    }

    @FunctionalInterface
    private interface Use {
        InputStream please() throws Exception;
    }

    private static long streams(String which) throws Exception {
        return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(
            new ObjectName("rlmm.daemon:type=connection,part=storage,broker=7"), "Streams" + which);
    }

    @Test
    void aFrozenDaemonCostsOneDeadlineAndIsUsedAgainWhenItThaws() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        daemon.freeze();
        assertFalse(metadata.isReady(LED));
        assertThrows(ReplicaNotAvailableException.class, () -> metadata.listRemoteLogSegments(LED));
        Wait.until("it is given up", () -> !connected("metadata"));
        assertThrows(ReplicaNotAvailableException.class,
            () -> metadata.addRemoteLogSegmentMetadata(Segments.started(LED, 500, 509, 1)));
        daemon.thaw();
        Wait.until("ready again", () -> metadata.isReady(LED));
        assertEquals(Optional.of(stored), metadata.remoteLogSegmentMetadata(LED, EPOCH, 0));
    }

    /** A copy has 21 minutes, so somebody has to ask. */
    @Test
    void aDaemonThatIsFrozenWhileItCopiesIsGivenUpLongBeforeTheCopysDeadline() throws Exception {
        Segments.OnDisk segment = Segments.write(daemon.logDir(), LED, 0, 1);
        metadata.addRemoteLogSegmentMetadata(segment.metadata()).get(10, TimeUnit.SECONDS);
        long before = connects("storage");
        daemon.freeze();
        RemoteStorageException error = assertThrows(RemoteStorageException.class,
            () -> storage.copyLogSegmentData(segment.metadata(), segment.data()));
        assertTrue(error.getMessage().contains("was lost"), error.getMessage());
        daemon.thaw();
        Wait.until("connected again", () -> connects("storage") > before);
        assertTrue(storage.copyLogSegmentData(segment.metadata(), segment.data()).isPresent());
    }

    /** As after some seconds of consumers that ask a stopped process again and again. */
    @Test
    void aFrozenDaemonThatTakesNoMoreConnectionsIsAwayAndNothingElse() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        daemon.freeze();
        List<SocketChannel> queued = new ArrayList<>();
        try {
            assertThrows(SocketException.class, () -> {
                while (queued.size() < 10_000) {
                    SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
                    queued.add(channel);
                    channel.configureBlocking(false);
                    channel.connect(UnixDomainSocketAddress.of(daemon.socket()));
                }
            });
            assertThrows(ReplicaNotAvailableException.class, () -> storage.fetchLogSegment(stored, 0));
            assertThrows(ReplicaNotAvailableException.class, () -> storage.fetchIndex(stored, IndexType.TRANSACTION));
            assertFalse(metadata.isReady(LED));
            Wait.until("it is given up", () -> !connected("metadata"));
            Set<Thread> known = Thread.getAllStackTraces().keySet();
            try (RlmmDaemonMetadataManager late = new RlmmDaemonMetadataManager()) {
                late.configure(daemon.configs(Map.of()), () -> 1);
                Wait.until("it tries again, and waits for nobody", () -> Thread.getAllStackTraces().entrySet().stream()
                    .anyMatch(entry -> !known.contains(entry.getKey()) && isIn("pause", entry.getValue())));
            }
        } finally {
            for (SocketChannel channel : queued) {
                channel.close();
            }
        }
        daemon.thaw();
        Wait.until("ready again", () -> metadata.isReady(LED) && connected("storage"));
        assertEquals(stored.segmentSizeInBytes(), readAll(storage.fetchLogSegment(stored, 0)));
    }

    @Test
    void announcementsToAFrozenDaemonReturnAtOnceAndAreMadeGoodLater() throws Exception {
        daemon.freeze();
        long begun = System.nanoTime();
        for (int i = 0; i < 2_000; i++) { // each would cost a deadline if it waited
            metadata.onPartitionLeadershipChanges(Set.of(LATER), Set.of(Segments.partition("other", i)));
            metadata.onStopPartitions(Set.of(Segments.partition("other", i)));
        }
        assertTrue(System.nanoTime() - begun < TimeUnit.SECONDS.toNanos(30), "an announcement waited");
        daemon.thaw();
        Wait.until("ready", () -> metadata.isReady(LED) && metadata.isReady(LATER));
        assertFalse(metadata.isReady(Segments.partition("other", 1_999)));
    }

    @Test
    void afterADeleteOfATopicsDeletionThatNobodyAnsweredTheNextIsRefusedAtOnce() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        daemon.freeze();
        assertThrows(RemoteStorageException.class, () -> delete(stored));
        daemon.thaw();
        RemoteStorageException refused = assertThrows(RemoteStorageException.class, () -> delete(stored));
        assertTrue(refused.getMessage().contains("is being deleted"), refused.getMessage());
    }

    private void delete(RemoteLogSegmentMetadata stored) throws Exception {
        RemoteLogManager.stopPartitions(() -> {
            storage.deleteLogSegmentData(stored);
            return null;
        });
    }

    @Test
    void anInterruptedReaderLeavesTheConnectionAlone() throws Exception {
        RemoteLogSegmentMetadata stored = finished(1);
        long before = connects("metadata");
        daemon.freeze();
        CompletableFuture<Exception> outcome = new CompletableFuture<>();
        CompletableFuture<Boolean> flag = new CompletableFuture<>();
        Thread reader = new Thread(() -> {
            try {
                metadata.remoteLogSegmentMetadata(LED, EPOCH, 0);
                outcome.complete(null);
            } catch (Exception error) {
                flag.complete(Thread.currentThread().isInterrupted());
                outcome.complete(error);
            }
        });
        reader.start();
        Wait.until("it waits", () -> reader.getState() == Thread.State.TIMED_WAITING);
        reader.interrupt();
        assertInstanceOf(ReplicaNotAvailableException.class, outcome.get(30, TimeUnit.SECONDS));
        assertTrue(flag.get());
        daemon.thaw();
        Wait.until("ready again", () -> metadata.isReady(LED));
        assertEquals(Optional.of(stored), metadata.remoteLogSegmentMetadata(LED, EPOCH, 0));
        assertEquals(before, connects("metadata"));
    }

    /** While it asks for more, and in a window that is larger than what is on its way. */
    @ParameterizedTest
    @ValueSource(ints = {0, 3_600_000})
    void anInterruptedStreamEndsAndTheNextOneWorks(int read) throws Exception {
        RemoteLogSegmentMetadata stored = finished(120);
        long before = connects("storage");
        InputStream stream = storage.fetchLogSegment(stored, 0);
        assertEquals(read, stream.readNBytes(read).length);
        daemon.freeze();
        CompletableFuture<Exception> outcome = new CompletableFuture<>();
        Thread reader = new Thread(() -> {
            try {
                stream.readAllBytes();
                outcome.complete(null);
            } catch (Exception error) {
                outcome.complete(error);
            }
        });
        reader.start();
        Wait.until("it waits", () -> reader.getState() == Thread.State.RUNNABLE && inSelect(reader));
        reader.interrupt();
        assertInstanceOf(java.io.InterruptedIOException.class, outcome.get(30, TimeUnit.SECONDS));
        stream.close();
        assertEquals(0, streams("Broken"), "its reader was told to hurry");
        assertEquals(0, streams("Parked"), "nobody can say what it would give");
        daemon.thaw();
        assertEquals(stored.segmentSizeInBytes(), readAll(storage.fetchLogSegment(stored, 0)));
        assertEquals(before, connects("storage"));
    }

    private static boolean inSelect(Thread thread) {
        return isIn("await", thread.getStackTrace());
    }

    private static boolean isIn(String method, StackTraceElement[] stack) {
        return Arrays.stream(stack).anyMatch(frame -> frame.getMethodName().equals(method));
    }

    static boolean connected(String part) throws Exception {
        return connected(part, 7);
    }

    static boolean connected(String part, int brokerId) throws Exception {
        return (boolean) ManagementFactory.getPlatformMBeanServer().getAttribute(
            new ObjectName("rlmm.daemon:type=connection,part=" + part + ",broker=" + brokerId), "Connected");
    }

    private static int readAll(InputStream stream) throws Exception {
        try (stream) {
            return stream.readAllBytes().length;
        }
    }
}
