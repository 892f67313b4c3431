package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.EPOCH;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The calls of RemoteLogMetadataManager, answered by a daemon that runs. */
final class MetadataManagerTest {
    private static DaemonProcess daemon;
    private RlmmDaemonMetadataManager manager;

    @BeforeAll
    static void startDaemon() throws Exception {
        daemon = DaemonProcess.started();
    }

    @AfterAll
    static void endDaemon() throws Exception {
        daemon.close();
    }

    @BeforeEach
    void configure() {
        manager = new RlmmDaemonMetadataManager();
        manager.configure(daemon.configs(Map.of("metadata.timeout.ms", 20_000)), () -> 1);
    }

    @AfterEach
    void close() throws Exception {
        manager.close();
    }

    private void lead(TopicIdPartition partition) throws Exception {
        manager.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        Wait.until("ready", () -> manager.isReady(partition));
    }

    private void finish(RemoteLogSegmentMetadata segment, Optional<CustomMetadata> custom) throws Exception {
        manager.addRemoteLogSegmentMetadata(segment).get(10, TimeUnit.SECONDS);
        manager.updateRemoteLogSegmentMetadata(
            Segments.update(segment, custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)).get(10, TimeUnit.SECONDS);
    }

    @Test
    void aSegmentIsFoundFromItsFinishToItsDelete() throws Exception {
        TopicIdPartition partition = Segments.partition("life", 0);
        lead(partition);
        RemoteLogSegmentMetadata segment = Segments.started(partition, 100, 199, 1_000);
        manager.addRemoteLogSegmentMetadata(segment).get(10, TimeUnit.SECONDS);
        assertEquals(Optional.empty(), manager.remoteLogSegmentMetadata(partition, EPOCH, 150));
        assertEquals(Optional.empty(), manager.highestOffsetForEpoch(partition, EPOCH));
        assertEquals(List.of(segment), all(manager.listRemoteLogSegments(partition)));

        Optional<CustomMetadata> custom = Optional.of(new CustomMetadata(new byte[]{1, 2, 3}));
        var update = Segments.update(segment, custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        manager.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS);
        RemoteLogSegmentMetadata finished = segment.createWithUpdates(update);
        assertEquals(Optional.of(finished), manager.remoteLogSegmentMetadata(partition, EPOCH, 150));
        assertEquals(Optional.of(finished), manager.nextSegmentWithTxnIndex(partition, EPOCH, 100));
        assertEquals(Optional.of(199L), manager.highestOffsetForEpoch(partition, EPOCH));
        assertEquals(1_000, manager.remoteLogSize(partition, EPOCH));
        assertEquals(List.of(finished), all(manager.listRemoteLogSegments(partition, EPOCH)));
        assertEquals(List.of(), all(manager.listRemoteLogSegments(partition, EPOCH + 1)));

        for (RemoteLogSegmentState state : List.of(
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)) {
            manager.updateRemoteLogSegmentMetadata(Segments.update(segment, custom, state)).get(10, TimeUnit.SECONDS);
            assertEquals(Optional.empty(), manager.remoteLogSegmentMetadata(partition, EPOCH, 150));
        }
        assertEquals(List.of(), all(manager.listRemoteLogSegments(partition)));
        assertEquals(Optional.of(199L), manager.highestOffsetForEpoch(partition, EPOCH));
    }

    @Test
    void customMetadataAndTheEmptinessOfTheTransactionIndexComeBackAsTheyWere() throws Exception {
        TopicIdPartition partition = Segments.partition("echo", 0);
        lead(partition);
        Optional<CustomMetadata> custom = Optional.of(new CustomMetadata(new byte[]{9, 8, 7}));
        RemoteLogSegmentMetadata without = Segments.started(partition, 0, 9, 1, true);
        RemoteLogSegmentMetadata with = Segments.started(partition, 10, 19, 1, false);
        finish(without, custom);
        finish(with, custom);
        RemoteLogSegmentMetadata found = manager.remoteLogSegmentMetadata(partition, EPOCH, 5).orElseThrow();
        assertTrue(found.isTxnIdxEmpty());
        assertEquals(custom, found.customMetadata());
        RemoteLogSegmentMetadata next = manager.nextSegmentWithTxnIndex(partition, EPOCH, 5).orElseThrow();
        assertEquals(with.remoteLogSegmentId(), next.remoteLogSegmentId());
        assertFalse(next.isTxnIdxEmpty());
        var gone = Segments.update(found, found.customMetadata(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
        manager.updateRemoteLogSegmentMetadata(gone).get(10, TimeUnit.SECONDS);
        RemoteLogSegmentMetadata deleting = all(manager.listRemoteLogSegments(partition)).stream()
            .filter(each -> each.remoteLogSegmentId().equals(found.remoteLogSegmentId())).findAny().orElseThrow();
        assertTrue(deleting.isTxnIdxEmpty());
        assertEquals(custom, deleting.customMetadata());
    }

    @Test
    void thousandsOfWritesAtOnceAllEndAndAreListedInOrderOverSeveralPages() throws Exception {
        TopicIdPartition partition = Segments.partition("burst", 0);
        lead(partition);
        List<CompletableFuture<Void>> writes = new ArrayList<>();
        int count = 3_000;
        for (int i = count - 1; i >= 0; i--) {
            writes.add(manager.addRemoteLogSegmentMetadata(Segments.started(partition, i * 10L, i * 10L + 9, 1)));
        }
        CompletableFuture.allOf(writes.toArray(CompletableFuture[]::new)).get(30, TimeUnit.SECONDS);
        assertEquals(count, all(manager.listRemoteLogSegments(partition)).size());
        List<Long> starts = all(manager.listRemoteLogSegments(partition, EPOCH)).stream()
            .map(RemoteLogSegmentMetadata::startOffset).toList();
        assertEquals(count, starts.size());
        assertEquals(starts.stream().sorted().toList(), starts);
    }

    @Test
    void whatWasNeverAnnouncedIsNotFoundAndNeverEmpty() {
        TopicIdPartition stranger = Segments.partition("stranger", 0);
        assertFalse(manager.isReady(stranger));
        assertThrows(Exception.class, () -> manager.remoteLogSegmentMetadata(stranger, EPOCH, 1));
        assertThrows(Exception.class, () -> manager.listRemoteLogSegments(stranger));
    }

    @Test
    void aStoppedPartitionIsNotFound() throws Exception {
        TopicIdPartition stopped = Segments.partition("stopped", 0);
        lead(stopped);
        manager.onStopPartitions(Set.of(stopped));
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.highestOffsetForEpoch(stopped, EPOCH));
        assertFalse(manager.isReady(stopped));
    }

    @Test
    void announcementsTakeEffectInTheirOrder() throws Exception {
        TopicIdPartition partition = Segments.partition("order", 0);
        for (int i = 0; i < 50; i++) {
            manager.onPartitionLeadershipChanges(Set.of(), Set.of(partition));
            manager.onStopPartitions(Set.of(partition));
            manager.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        }
        Wait.until("ready", () -> manager.isReady(partition));
        finish(Segments.started(partition, 0, 9, 1), Optional.empty()); // refused of a follower
    }

    @Test
    void wrongStatesAndNullsAreRefusedBeforeAnythingIsSent() {
        RemoteLogSegmentMetadata segment = Segments.started(ORDERS, 0, 9, 1);
        var finished = Segments.update(segment, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        assertThrows(IllegalArgumentException.class,
            () -> manager.addRemoteLogSegmentMetadata(segment.createWithUpdates(finished)));
        assertThrows(IllegalArgumentException.class, () -> manager.updateRemoteLogSegmentMetadata(
            Segments.update(segment, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_STARTED)));
        assertFalse(manager.isReady(null));
        for (Executable use : List.<Executable>of(
            () -> manager.addRemoteLogSegmentMetadata(null), () -> manager.updateRemoteLogSegmentMetadata(null),
            () -> manager.putRemotePartitionDeleteMetadata(null), () -> manager.listRemoteLogSegments(null),
            () -> manager.listRemoteLogSegments(null, EPOCH), () -> manager.remoteLogSegmentMetadata(null, EPOCH, 1),
            () -> manager.highestOffsetForEpoch(null, EPOCH), () -> manager.nextSegmentWithTxnIndex(null, EPOCH, 1),
            () -> manager.remoteLogSize(null, EPOCH), () -> manager.onStopPartitions(null),
            () -> manager.onPartitionLeadershipChanges(null, Set.of()),
            () -> manager.onPartitionLeadershipChanges(Set.of(), null))) {
            assertThrows(NullPointerException.class, use);
        }
    }

    @Test
    void aNullAmongPartitionsIsRefusedAndIsNotSaidEverAfter() throws Exception {
        Set<TopicIdPartition> some = new HashSet<>(Arrays.asList(ORDERS, null));
        assertThrows(NullPointerException.class, () -> manager.onPartitionLeadershipChanges(some, Set.of()));
        assertThrows(NullPointerException.class, () -> manager.onPartitionLeadershipChanges(Set.of(), some));
        assertThrows(NullPointerException.class, () -> manager.onStopPartitions(some));
        try (RlmmDaemonMetadataManager early = new RlmmDaemonMetadataManager()) {
            assertThrows(NullPointerException.class, () -> early.onPartitionLeadershipChanges(some, Set.of()));
            early.configure(daemon.configs(Map.of()), () -> 1);
            early.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
            Wait.until("what is announced is said", () -> early.isReady(ORDERS));
        }
    }

    @Test
    void aRefusedUpdateFailsItsFuture() throws Exception {
        TopicIdPartition partition = Segments.partition("unknown", 0);
        lead(partition);
        var update = Segments.update(
            Segments.started(partition, 0, 9, 1), Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        ExecutionException error = assertThrows(ExecutionException.class,
            () -> manager.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS));
        assertInstanceOf(RemoteResourceNotFoundException.class, error.getCause());
    }

    @Test
    void aPartitionCanBeMarkedForDeletion() throws Exception {
        TopicIdPartition partition = Segments.partition("marked", 0);
        lead(partition);
        manager.putRemotePartitionDeleteMetadata(new RemotePartitionDeleteMetadata(
            partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 5, 7)).get(10, TimeUnit.SECONDS);
    }

    @Test
    void aSecondConfigureIsHarmless() throws Exception {
        lead(ORDERS);
        manager.configure(Map.of());
        assertTrue(manager.isReady(ORDERS));
    }

    @Test
    void closingTwiceIsFineAndEndsEverythingAsWithKafkasManager() throws Exception {
        lead(ORDERS);
        manager.close();
        manager.close();
        assertFalse(manager.isReady(ORDERS));
        RemoteLogSegmentMetadata segment = Segments.started(ORDERS, 0, 9, 1);
        for (Executable use : List.<Executable>of(
            () -> manager.listRemoteLogSegments(ORDERS), () -> manager.listRemoteLogSegments(ORDERS, EPOCH),
            () -> manager.remoteLogSegmentMetadata(ORDERS, EPOCH, 1), () -> manager.highestOffsetForEpoch(ORDERS, EPOCH),
            () -> manager.nextSegmentWithTxnIndex(ORDERS, EPOCH, 1), () -> manager.remoteLogSize(ORDERS, EPOCH),
            () -> manager.addRemoteLogSegmentMetadata(segment),
            () -> manager.onStopPartitions(Set.of(ORDERS)),
            () -> manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of()))) {
            assertThrows(IllegalStateException.class, use);
        }
    }

    /** Longer than any two look-ups of the broker are apart: which one is named is not to hang on that. */
    @Test
    void whoReadsOnIsGivenTheSegmentThatLiesOverTheOneThatWasFound() throws Exception {
        TopicIdPartition partition = Segments.partition("overlapping", 0);
        RemoteLogSegmentMetadata lower = Segments.started(partition, 0, 99, 1_000);
        RemoteLogSegmentMetadata upper = Segments.started(partition, 40, 59, 1_000);
        try (RlmmDaemonMetadataManager patient = new RlmmDaemonMetadataManager()) {
            patient.configure(daemon.configs(Map.of("lookup.reuse.ms", 1_000)), () -> 1);
            patient.onPartitionLeadershipChanges(Set.of(partition), Set.of());
            Wait.until("ready", () -> patient.isReady(partition));
            lead(partition);
            finish(lower, Optional.empty());
            finish(upper, Optional.empty());
            for (long offset = 0; offset < 100; offset += 4) {
                RemoteLogSegmentMetadata expected = offset < 40 || offset >= 60 ? lower : upper;
                assertEquals(expected.remoteLogSegmentId(),
                    patient.remoteLogSegmentMetadata(partition, EPOCH, offset).orElseThrow().remoteLogSegmentId());
            }
        }
    }

    @Test
    void callsAreCountedInJmx() throws Exception {
        lead(ORDERS);
        var server = ManagementFactory.getPlatformMBeanServer();
        var calls = new ObjectName("rlmm.daemon:type=calls,part=metadata,broker=7,method=is_ready");
        Wait.until("to be seen", () -> server.isRegistered(calls));
        assertTrue((long) server.getAttribute(calls, "Count") > 0);
        assertTrue((double) server.getAttribute(calls, "P99Ms") > 0);
        var connection = new ObjectName("rlmm.daemon:type=connection,part=metadata,broker=7");
        assertEquals(true, server.getAttribute(connection, "Connected"));
        manager.close();
        assertFalse(server.isRegistered(calls));
    }

    static List<RemoteLogSegmentMetadata> all(Iterator<RemoteLogSegmentMetadata> segments) {
        List<RemoteLogSegmentMetadata> found = new ArrayList<>();
        segments.forEachRemaining(found::add);
        return found;
    }
}
