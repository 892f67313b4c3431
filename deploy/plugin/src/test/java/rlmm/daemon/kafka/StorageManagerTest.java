package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The calls of RemoteStorageManager, with real batches on disk and a daemon that runs. */
final class StorageManagerTest {
    private static DaemonProcess daemon;
    private static RlmmDaemonMetadataManager metadata;
    private static RlmmDaemonStorageManager storage;

    @BeforeAll
    static void start() throws Exception {
        daemon = DaemonProcess.started();
        metadata = new RlmmDaemonMetadataManager();
        metadata.configure(daemon.configs(Map.of()), () -> 1);
        storage = new RlmmDaemonStorageManager();
        Map<String, Object> configs = daemon.configs(Map.of());
        configs.remove("cluster.id"); // as Kafka does
        storage.configure(configs);
        storage.configure(Map.of());
    }

    @AfterAll
    static void end() throws Exception {
        storage.close();
        storage.close();
        metadata.close();
        daemon.close();
    }

    private static Segments.OnDisk segment(String topic, int records) throws Exception {
        TopicIdPartition partition = Segments.partition(topic, 0);
        metadata.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        Wait.until("ready", () -> metadata.isReady(partition));
        Segments.OnDisk segment = Segments.write(daemon.logDir(), partition, 500, records);
        metadata.addRemoteLogSegmentMetadata(segment.metadata()).get(10, TimeUnit.SECONDS);
        return segment;
    }

    private static RemoteLogSegmentMetadata update(
            RemoteLogSegmentMetadata of, Optional<CustomMetadata> custom, RemoteLogSegmentState state) throws Exception {
        var update = Segments.update(of, custom, state);
        metadata.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS);
        return of.createWithUpdates(update);
    }

    private static RemoteLogSegmentMetadata copied(Segments.OnDisk segment) throws Exception {
        Optional<CustomMetadata> custom = storage.copyLogSegmentData(segment.metadata(), segment.data());
        return update(segment.metadata(), custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
    }

    @Test
    void everyFileOfASegmentComesBackByteForByte() throws Exception {
        Segments.OnDisk segment = segment("whole", 3);
        RemoteLogSegmentMetadata stored = copied(segment);
        assertTrue(stored.customMetadata().isPresent());
        assertArrayEquals(segment.log(), read(storage.fetchLogSegment(stored, 0)));
        assertArrayEquals(Files.readAllBytes(segment.data().offsetIndex()), read(storage.fetchIndex(stored, IndexType.OFFSET)));
        assertArrayEquals(Files.readAllBytes(segment.data().timeIndex()), read(storage.fetchIndex(stored, IndexType.TIMESTAMP)));
        assertEquals("producers", text(storage.fetchIndex(stored, IndexType.PRODUCER_SNAPSHOT)));
        assertEquals("0\n1\n3 500\n", text(storage.fetchIndex(stored, IndexType.LEADER_EPOCH)));
        assertThrows(RemoteResourceNotFoundException.class, () -> storage.fetchIndex(stored, IndexType.TRANSACTION));
    }

    @Test
    void theSharedEpochBufferIsLeftAsItWas() throws Exception {
        Segments.OnDisk segment = segment("shared", 1);
        copied(segment);
        assertEquals(0, segment.data().leaderEpochIndex().position());
        assertTrue(segment.data().leaderEpochIndex().hasRemaining());
    }

    @Test
    void rangesAreExactAcrossTheWindowsInWhichTheyAreAskedFor() throws Exception {
        Segments.OnDisk segment = segment("ranges", 80); // 5 MiB: three windows
        RemoteLogSegmentMetadata stored = copied(segment);
        byte[] log = segment.log();
        int last = log.length - 1;
        int window = BulkCursor.FIRST_WINDOW_BYTES;
        int[][] ranges = {{0, 0}, {last, last}, {1, window}, {1, window + 1}, {7, 3 * window + 9}, {5, last}, {0, last}};
        for (int[] range : ranges) {
            assertArrayEquals(Arrays.copyOfRange(log, range[0], range[1] + 1),
                read(storage.fetchLogSegment(stored, range[0], range[1])), Arrays.toString(range));
        }
        assertArrayEquals(Arrays.copyOfRange(log, 11, log.length), read(storage.fetchLogSegment(stored, 11)));
        assertArrayEquals(Arrays.copyOfRange(log, 11, log.length),
            read(storage.fetchLogSegment(stored, 11, Integer.MAX_VALUE)));
        try (InputStream stream = storage.fetchLogSegment(stored, 3)) {
            assertEquals(log[3] & 0xff, stream.read());
        }
    }

    @Test
    void aRangeBeyondTheSegmentIsAnIllegalArgument() throws Exception {
        RemoteLogSegmentMetadata stored = copied(segment("beyond", 1));
        assertThrows(IllegalArgumentException.class, () -> storage.fetchLogSegment(stored, -1));
        assertThrows(IllegalArgumentException.class, () -> storage.fetchLogSegment(stored, 9, 8));
        assertThrows(IllegalArgumentException.class, () -> storage.fetchLogSegment(stored, stored.segmentSizeInBytes()));
    }

    @Test
    void aStreamThatIsClosedEarlyFreesItsPlaceAndItsConnection() throws Exception {
        RemoteLogSegmentMetadata stored = copied(segment("early", 80));
        ObjectName bean = new ObjectName("rlmm.daemon:type=connection,part=storage,broker=7");
        var server = ManagementFactory.getPlatformMBeanServer();
        for (int i = 0; i < 300; i++) { // more than fetch.connections.max
            InputStream stream = storage.fetchLogSegment(stored, 0);
            byte[] some = new byte[i % 2 == 0 ? 10 : 1_100_000];
            assertEquals(some.length, stream.readNBytes(some, 0, some.length));
            stream.close();
            stream.close();
        }
        assertEquals(0L, server.getAttribute(bean, "OpenStreams"));
        assertTrue((long) server.getAttribute(bean, "StreamsClosedEarly") > 0, "some had much left");
        assertArrayEquals(new byte[]{0, 0}, read(storage.fetchLogSegment(stored, 0, 1)));
    }

    @Test
    void aStreamThatIsClosedNearItsWindowsEndLeavesItsConnectionToTheNextOne() throws Exception {
        Segments.OnDisk segment = segment("near", 80);
        RemoteLogSegmentMetadata stored = copied(segment);
        ObjectName bean = new ObjectName("rlmm.daemon:type=connection,part=storage,broker=7");
        var server = ManagementFactory.getPlatformMBeanServer();
        Wait.until("the streams of other tests are forgotten", () -> count(CONNECTION, "StreamsParked") == 0);
        Object before = server.getAttribute(bean, "StreamsClosedEarly");
        byte[] some = new byte[1_100_000];
        for (int at = 0; at < 200; at++) { // each passes over what the one before it left
            try (InputStream stream = storage.fetchLogSegment(stored, at)) {
                assertEquals(some.length, stream.readNBytes(some, 0, some.length));
            }
            assertArrayEquals(Arrays.copyOfRange(segment.log(), at, at + some.length), some);
        }
        assertEquals(before, server.getAttribute(bean, "StreamsClosedEarly"));
    }

    private static final String CONNECTION = "rlmm.daemon:type=connection,part=storage,broker=7";

    private static long count(String bean, String attribute) throws Exception {
        return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(new ObjectName(bean), attribute);
    }

    @Test
    void oneThatWasClosedRefusesWritesAsTheBrokerRollsThemBackAndReadsAsConsumersTryAgain() throws Exception {
        RlmmDaemonStorageManager closed = new RlmmDaemonStorageManager();
        closed.configure(daemon.configs(Map.of()));
        closed.close();
        Segments.OnDisk segment = Segments.write(daemon.logDir(), Segments.partition("closed", 0), 0, 1);
        assertThrows(RemoteStorageException.class, () -> closed.copyLogSegmentData(segment.metadata(), segment.data()));
        assertThrows(RemoteStorageException.class, () -> closed.deleteLogSegmentData(segment.metadata()));
        assertThrows(org.apache.kafka.common.errors.ReplicaNotAvailableException.class,
            () -> closed.fetchLogSegment(segment.metadata(), 0));
    }

    /** As a broker reads for a consumer: to the segment's end, closed after a fetch, then again from the cut batch. */
    @Test
    void whoeverReadsOnWhereAStreamWasClosedAsksTheDaemonOncePerWindow() throws Exception {
        Segments.OnDisk segment = segment("onwards", 500); // 31 MiB
        RemoteLogSegmentMetadata stored = copied(segment);
        String calls = "rlmm.daemon:type=calls,part=storage,broker=7,method=fetch_log_segment";
        storage.fetchLogSegment(stored, 0, 1).close(); // with this there is a bean
        long asked = count(calls, "Count");
        long resumed = count(CONNECTION, "StreamsResumed");
        byte[] some = new byte[1024 * 1024];
        int fetches = 0;
        for (int at = 0; at < segment.log().length; fetches++) {
            try (InputStream stream = storage.fetchLogSegment(stored, at)) {
                int got = stream.readNBytes(some, 0, some.length);
                assertArrayEquals(Arrays.copyOfRange(segment.log(), at, at + got), Arrays.copyOf(some, got));
                at += got < some.length ? got : got - 70_000;
            }
        }
        assertTrue(fetches > 30, "" + fetches);
        assertTrue(count(CONNECTION, "StreamsResumed") - resumed >= fetches - 3, "most went on where one had stopped");
        assertTrue(count(calls, "Count") - asked <= 9, "windows of 1, 2, 4 and then 8 MiB");
    }

    @Test
    void twoReadersOfASegmentGoOnEachWhereItStopped() throws Exception {
        Segments.OnDisk segment = segment("two", 120);
        RemoteLogSegmentMetadata stored = copied(segment);
        long resumed = count(CONNECTION, "StreamsResumed");
        int[] at = {0, 3_000_000};
        byte[] some = new byte[300_000];
        for (int i = 0; i < 20; i++) {
            int which = i % 2;
            try (InputStream stream = storage.fetchLogSegment(stored, at[which])) {
                assertEquals(some.length, stream.readNBytes(some, 0, some.length));
            }
            assertArrayEquals(Arrays.copyOfRange(segment.log(), at[which], at[which] + some.length), some);
            at[which] += some.length - 1_000;
        }
        assertTrue(count(CONNECTION, "StreamsResumed") - resumed >= 14, "both");
    }

    @Test
    void aStreamOnWhichNobodyReadsOnIsCancelledAtTheDaemonAfterAWhile() throws Exception {
        RemoteLogSegmentMetadata stored = copied(segment("left", 80));
        long before = count(CONNECTION, "StreamsClosedEarly");
        storage.fetchLogSegment(stored, 0).close();
        Wait.until("it is closed", () -> count(CONNECTION, "StreamsClosedEarly") > before);
    }

    @Test
    void nobodyReadsOnInASegmentThatIsDeleted() throws Exception {
        RemoteLogSegmentMetadata stored = copied(segment("forgotten", 80));
        storage.fetchLogSegment(stored, 0).close();
        var deleting = update(stored, stored.customMetadata(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
        storage.deleteLogSegmentData(deleting);
        assertThrows(RemoteResourceNotFoundException.class, () -> storage.fetchLogSegment(stored, 0));
    }

    @Test
    void noMoreThanAFewAreKeptForWhoeverReadsOn() throws Exception {
        Segments.OnDisk segment = segment("many-places", 80);
        RemoteLogSegmentMetadata stored = copied(segment);
        byte[] some = new byte[10];
        for (int i = 0; i < 40; i++) {
            int at = i * 100_000;
            try (InputStream stream = storage.fetchLogSegment(stored, at)) {
                assertEquals(some.length, stream.readNBytes(some, 0, some.length));
            }
            assertArrayEquals(Arrays.copyOfRange(segment.log(), at, at + some.length), some);
            assertTrue(count(CONNECTION, "StreamsParked") <= 16);
        }
        assertEquals(0, count(CONNECTION, "OpenStreams"));
        Wait.until("nor for long", () -> count(CONNECTION, "StreamsParked") == 0);
    }

    @Test
    void whatIsKeptGivesWayToAStreamThatNeedsItsPlace() throws Exception {
        Segments.OnDisk segment = segment("gives-way", 80);
        RemoteLogSegmentMetadata stored = copied(segment);
        try (RlmmDaemonStorageManager narrow = new RlmmDaemonStorageManager()) {
            narrow.configure(daemon.configs(Map.of("fetch.connections.max", "2", "hold.ms", "0", "broker.id", "7")));
            for (int round = 0; round < 20; round++) {
                try (InputStream one = narrow.fetchLogSegment(stored, 1_000_000 + round);
                     InputStream two = narrow.fetchLogSegment(stored, 2_000_000 + round)) {
                    assertEquals(segment.log()[1_000_000 + round], (byte) one.read());
                    assertEquals(segment.log()[2_000_000 + round], (byte) two.read());
                }
                narrow.fetchLogSegment(stored, 3_000_000 + round).close();
                narrow.fetchIndex(stored, IndexType.OFFSET).close();
            }
        }
    }

    @Test
    void tooManyOpenStreamsAreRefusedAsRetriable() throws Exception {
        RemoteLogSegmentMetadata stored = copied(segment("many", 80));
        try (RlmmDaemonStorageManager narrow = new RlmmDaemonStorageManager()) {
            narrow.configure(daemon.configs(Map.of("fetch.connections.max", "2", "hold.ms", "0", "broker.id", "7")));
            try (InputStream one = narrow.fetchLogSegment(stored, 0); InputStream two = narrow.fetchLogSegment(stored, 0)) {
                assertThrows(org.apache.kafka.common.errors.ReplicaNotAvailableException.class,
                    () -> narrow.fetchLogSegment(stored, 0));
                assertEquals(0, one.read() + two.read());
            }
            narrow.fetchLogSegment(stored, 0).close();
        }
    }

    @Test
    void aCopyThatTheDaemonRefusesBeforeAnyWriteIsRolledBackUnlessItMayBeRepeated() throws Exception {
        Segments.OnDisk segment = segment("foreign", 1);
        Path outside = Files.createTempFile("rlmm", ".log");
        LogSegmentData foreign = new LogSegmentData(outside, segment.data().offsetIndex(), segment.data().timeIndex(),
            Optional.empty(), segment.data().producerSnapshotIndex(), segment.data().leaderEpochIndex());
        RemoteStorageException error = assertThrows(RemoteStorageException.class,
            () -> storage.copyLogSegmentData(segment.metadata(), foreign));
        assertEquals(RemoteStorageException.class, error.getClass(), "and not its retriable kind");
        Files.delete(outside);
    }

    @Test
    void aDeleteRemovesTheObjectsAndMayBeRepeated() throws Exception {
        Segments.OnDisk segment = segment("deleted", 1);
        RemoteLogSegmentMetadata stored = copied(segment);
        assertTrue(objects("deleted") > 0);
        RemoteLogSegmentMetadata deleting =
            update(stored, stored.customMetadata(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
        storage.deleteLogSegmentData(deleting);
        storage.deleteLogSegmentData(deleting);
        assertEquals(0, objects("deleted"));
        update(stored, stored.customMetadata(), RemoteLogSegmentState.DELETE_SEGMENT_FINISHED);
        storage.deleteLogSegmentData(deleting);
        assertThrows(RemoteResourceNotFoundException.class, () -> storage.fetchLogSegment(stored, 0));
    }

    private static long objects(String topic) throws Exception {
        try (var files = Files.walk(daemon.remote())) {
            return files.filter(file -> Files.isRegularFile(file) && file.toString().contains("/" + topic + "-")).count();
        }
    }

    private static byte[] read(InputStream stream) throws Exception {
        try (stream) {
            return stream.readAllBytes();
        }
    }

    private static String text(InputStream stream) throws Exception {
        return new String(read(stream), StandardCharsets.UTF_8);
    }
}
