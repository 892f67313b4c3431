package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.EPOCH;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.junit.jupiter.api.Test;
import org.msgpack.core.MessagePacker;

/** What a segment that was just found answers for, and when it no longer does. */
final class RecentSegmentsTest {
    private static final long LONG_MS = 60_000;
    private static final TopicIdPartition OTHERS = Segments.partition("others", 1);
    /** Epochs 3 and 5, the latter from 150 on. */
    private static final RemoteLogSegmentMetadata SEGMENT = new RemoteLogSegmentMetadata(
        new RemoteLogSegmentId(ORDERS, Uuid.randomUuid()), 100, 199, 1, 1, 1, 1_000, Map.of(EPOCH, 100L, EPOCH + 2, 150L));

    private final RecentSegments recent = new RecentSegments(LONG_MS);

    private void keep(int epoch, long offset) {
        keep(epoch, offset, epoch == EPOCH ? 149 : 199);
    }

    private void keep(int epoch, long offset, long until) {
        recent.keep(ORDERS, epoch, offset, until, SEGMENT, System.nanoTime(), recent.asking());
    }

    private Optional<RemoteLogSegmentMetadata> of(int epoch, long offset) {
        return recent.of(ORDERS, epoch, offset);
    }

    @Test
    void itAnswersFromTheOffsetThatWasAskedAboutToTheEndOfTheEpoch() {
        keep(EPOCH, 120);
        assertNull(of(EPOCH, 119)); // another segment may lie over this one there
        assertEquals(Optional.of(SEGMENT), of(EPOCH, 120));
        assertEquals(Optional.of(SEGMENT), of(EPOCH, 149));
        assertNull(of(EPOCH, 150));
        assertNull(of(EPOCH + 2, 150));
        assertNull(recent.of(OTHERS, EPOCH, 130));
    }

    @Test
    void whereAnotherSegmentLiesOverItItIsAskedAgain() {
        keep(EPOCH, 120, 130);
        assertEquals(Optional.of(SEGMENT), of(EPOCH, 130));
        assertNull(of(EPOCH, 131));
        keep(EPOCH, 120, -1); // of a daemon that does not say
        assertNull(of(EPOCH, 120));
    }

    @Test
    void theLastEpochGoesToTheEndOfTheSegment() {
        keep(EPOCH + 2, 150);
        assertEquals(Optional.of(SEGMENT), of(EPOCH + 2, 199));
        assertNull(of(EPOCH + 2, 200));
        keep(EPOCH + 1, 160); // of which it holds nothing
        assertNull(of(EPOCH + 1, 170));
    }

    @Test
    void itIsUsedForAMomentOnly() {
        long now = System.nanoTime();
        recent.keep(ORDERS, EPOCH, 120, 149, SEGMENT, now - TimeUnit.MILLISECONDS.toNanos(LONG_MS), recent.asking());
        assertNull(of(EPOCH, 120));
        RecentSegments never = new RecentSegments(0);
        never.keep(ORDERS, EPOCH, 120, 149, SEGMENT, now, never.asking());
        assertNull(never.of(ORDERS, EPOCH, 120));
    }

    @Test
    void whatWasAskedBeforeAChangeIsNotKeptAfterIt() {
        long asking = recent.asking();
        recent.forget(Set.of(ORDERS));
        recent.keep(ORDERS, EPOCH, 120, 149, SEGMENT, System.nanoTime(), asking);
        assertNull(of(EPOCH, 120));
    }

    @Test
    void aChangeAndALostConnectionEndIt() {
        keep(EPOCH, 120);
        recent.forget(Set.of(OTHERS));
        assertEquals(Optional.of(SEGMENT), of(EPOCH, 120));
        recent.forget(Set.of(OTHERS, ORDERS));
        assertNull(of(EPOCH, 120));
        keep(EPOCH, 120);
        recent.lost();
        assertNull(of(EPOCH, 120));
    }

    @Test
    void ofMorePartitionsThanItRemembersItForgetsTheEarlier() {
        keep(EPOCH, 120);
        for (int number = 1; number < RecentSegments.KEPT_MAX; number++) {
            recent.keep(Segments.partition("many", number), EPOCH, 120, 149, SEGMENT, System.nanoTime(), recent.asking());
        }
        assertEquals(Optional.of(SEGMENT), of(EPOCH, 120));
        recent.keep(OTHERS, EPOCH, 120, 149, SEGMENT, System.nanoTime(), recent.asking());
        assertNull(of(EPOCH, 120));
        assertEquals(Optional.of(SEGMENT), recent.of(OTHERS, EPOCH, 120));
    }

    /** Through a daemon, by a manager that would use what it found for as long as the test runs. */
    @Test
    void aManagerAsksOnceForASegmentThatIsReadAndAgainAfterEachChange() throws Exception {
        TopicIdPartition partition = Segments.partition("read-on", 0);
        RemoteLogSegmentMetadata started = Segments.started(partition, 100, 199, 1_000);
        try (DaemonProcess daemon = DaemonProcess.started(); RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            manager.configure(daemon.configs(Map.of(PluginConfig.LOOKUP_REUSE_MS, "1000")), () -> 1);
            manager.onPartitionLeadershipChanges(Set.of(partition), Set.of());
            Wait.until("ready", () -> manager.isReady(partition));
            manager.addRemoteLogSegmentMetadata(started).get(10, TimeUnit.SECONDS);
            var finish = Segments.update(started, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
            manager.updateRemoteLogSegmentMetadata(finish).get(10, TimeUnit.SECONDS);
            Wait.until("in JMX", () -> ManagementFactory.getPlatformMBeanServer().isRegistered(bean()));
            long before = reused();
            for (long offset = 100; offset < 200; offset++) {
                assertEquals(Optional.of(started.createWithUpdates(finish)),
                    manager.remoteLogSegmentMetadata(partition, EPOCH, offset));
            }
            assertTrue(reused() > before, "most of them took less than a second");
            for (RemoteLogSegmentState state : new RemoteLogSegmentState[]{
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}) {
                manager.updateRemoteLogSegmentMetadata(
                    Segments.update(started, Optional.empty(), state)).get(10, TimeUnit.SECONDS);
                assertEquals(Optional.empty(), manager.remoteLogSegmentMetadata(partition, EPOCH, 150));
            }
        }
    }

    /** It was answered as of before the write, which then took effect: who waited for that must not see it any more. */
    @Test
    void aLookUpBetweenAWriteAndItsAnswerDoesNotOutliveTheAnswer() throws Exception {
        String update = "update_remote_log_segment_metadata", lookUp = "remote_log_segment_metadata";
        byte[] found = new Records().encode(SEGMENT);
        var written = new AtomicInteger();
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            daemon.answer(update, id -> {
                written.set(id);
                return new byte[0];
            });
            manager.configure(daemon.configs(Map.of(PluginConfig.LOOKUP_REUSE_MS, "1000")), () -> 1);
            Wait.until("ready", () -> manager.isReady(ORDERS));
            var deleting = Segments.update(SEGMENT, Optional.empty(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
            var answered = manager.updateRemoteLogSegmentMetadata(deleting);
            Wait.until("sent", () -> daemon.asked.contains(update));

            daemon.answer(lookUp, id -> RudeDaemon.answer(id, packer -> {
                packer.packArrayHeader(2);
                Wire.pack(packer, found);
                packer.packLong(149);
            }));
            assertTrue(manager.remoteLogSegmentMetadata(ORDERS, EPOCH, 110).isPresent());
            daemon.answer("highest_offset_for_epoch", id -> {
                byte[] first = RudeDaemon.answer(written.get(), MessagePacker::packNil);
                byte[] second = RudeDaemon.answer(id, MessagePacker::packNil);
                return ByteBuffer.allocate(first.length + second.length).put(first).put(second).array();
            });
            assertEquals(Optional.empty(), manager.highestOffsetForEpoch(ORDERS, EPOCH));
            answered.get(10, TimeUnit.SECONDS);
            daemon.answer(lookUp, id -> RudeDaemon.answer(id, MessagePacker::packNil));
            assertEquals(Optional.empty(), manager.remoteLogSegmentMetadata(ORDERS, EPOCH, 111));
        }
    }

    @FunctionalInterface
    private interface Happening {
        void to(RlmmDaemonMetadataManager manager, RudeDaemon daemon) throws Exception;
    }

    /** The daemon finds a segment once; whatever happens then, it is asked again. */
    private static void isAskedAgainAfter(Happening happening) throws Exception {
        String lookUp = "remote_log_segment_metadata";
        byte[] found = new Records().encode(SEGMENT);
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            daemon.answer(lookUp, id -> RudeDaemon.answer(id, packer -> {
                packer.packArrayHeader(2);
                Wire.pack(packer, found);
                packer.packLong(149);
            }));
            manager.configure(
                daemon.configs(Map.of(PluginConfig.LOOKUP_REUSE_MS, "1000", PluginConfig.HOLD_MS, "10000")), () -> 1);
            Wait.until("ready", () -> manager.isReady(ORDERS));
            assertTrue(manager.remoteLogSegmentMetadata(ORDERS, EPOCH, 110).isPresent());
            daemon.answer(lookUp, id -> RudeDaemon.answer(id, MessagePacker::packNil));
            happening.to(manager, daemon);
            assertEquals(Optional.empty(), manager.remoteLogSegmentMetadata(ORDERS, EPOCH, 111));
        }
    }

    @Test
    void newsOfThePartitionEndIt() throws Exception {
        isAskedAgainAfter((manager, daemon) -> manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of()));
        isAskedAgainAfter((manager, daemon) -> manager.onPartitionLeadershipChanges(Set.of(), Set.of(ORDERS)));
        isAskedAgainAfter((manager, daemon) -> manager.onStopPartitions(Set.of(ORDERS)));
    }

    @Test
    void aReconnectEndsIt() throws Exception {
        isAskedAgainAfter((manager, daemon) -> {
            daemon.hangUp();
            Wait.until("gone", () -> !manager.isReady(ORDERS) || daemon.asked.stream().filter("hello"::equals).count() > 1);
            Wait.until("again", () -> manager.isReady(ORDERS));
        });
    }

    private static ObjectName bean() throws Exception {
        return new ObjectName("rlmm.daemon:type=connection,part=metadata,broker=" + DaemonProcess.BROKER_ID);
    }

    private static long reused() throws Exception {
        return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(bean(), "LookupsReused");
    }
}
