package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;

import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.msgpack.core.MessagePacker;

/** Segments that the broker reads from the daemon's own files, and what it does where it cannot. */
final class LocalFilesTest {
    private static final int BROKER = 11;
    private static DaemonProcess daemon;
    private static RlmmDaemonMetadataManager metadata;
    private static RlmmDaemonStorageManager storage;

    @BeforeAll
    static void start() throws Exception {
        daemon = DaemonProcess.started();
        metadata = new RlmmDaemonMetadataManager();
        metadata.configure(daemon.configs(Map.of()), () -> 1);
        storage = new RlmmDaemonStorageManager();
        storage.configure(daemon.configs(Map.of(PluginConfig.FETCH_OPEN_FILES, "true")));
    }

    @AfterAll
    static void end() throws Exception {
        storage.close();
        metadata.close();
        daemon.close();
    }

    private record Stored(RemoteLogSegmentMetadata metadata, byte[] log) { }

    private static Stored stored(String topic, int records) throws Exception {
        TopicIdPartition partition = Segments.partition(topic, 0);
        metadata.onPartitionLeadershipChanges(Set.of(partition), Set.of());
        Wait.until("ready", () -> metadata.isReady(partition));
        Segments.OnDisk segment = Segments.write(daemon.logDir(), partition, 500, records);
        metadata.addRemoteLogSegmentMetadata(segment.metadata()).get(10, TimeUnit.SECONDS);
        var custom = storage.copyLogSegmentData(segment.metadata(), segment.data());
        var update = Segments.update(segment.metadata(), custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        metadata.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS);
        return new Stored(segment.metadata().createWithUpdates(update), segment.log());
    }

    private static long count(int broker, String attribute) throws Exception {
        return (long) ManagementFactory.getPlatformMBeanServer().getAttribute(
            new ObjectName("rlmm.daemon:type=connection,part=storage,broker=" + broker), attribute);
    }

    private static long opened() throws Exception {
        return count(DaemonProcess.BROKER_ID, "FilesOpened");
    }

    private static byte[] read(InputStream stream) throws IOException {
        try (stream) {
            return stream.readAllBytes();
        }
    }

    /** How often this JVM has a segment's log open. */
    private static long descriptors(RemoteLogSegmentMetadata of) throws IOException {
        String id = of.remoteLogSegmentId().id().toString();
        try (var all = Files.list(Path.of("/proc/self/fd"))) {
            return all.filter(each -> {
                try {
                    return Files.readSymbolicLink(each).toString().contains(id);
                } catch (IOException closedMeanwhile) {
                    return false;
                }
            }).count();
        }
    }

    @Test
    void rangesAreExact() throws Exception {
        Stored segment = stored("exact", 80);
        byte[] log = segment.log();
        int last = log.length - 1;
        long before = opened();
        for (int[] range : new int[][]{{0, 0}, {last, last}, {7, 3_500_009}, {5, last}, {0, last}, {0, Integer.MAX_VALUE}}) {
            assertArrayEquals(Arrays.copyOfRange(log, range[0], Math.min(range[1], last) + 1),
                read(storage.fetchLogSegment(segment.metadata(), range[0], range[1])), Arrays.toString(range));
        }
        assertTrue(opened() > before, "and they came from the file");
        assertEquals(0, count(DaemonProcess.BROKER_ID, "StreamsBroken"));
    }

    @Test
    void aConsumersFetchesAskTheDaemonOnce() throws Exception {
        Stored segment = stored("onwards", 200);
        long before = opened();
        byte[] some = new byte[1024 * 1024];
        for (int at = 0; at < segment.log().length;) {
            try (InputStream stream = storage.fetchLogSegment(segment.metadata(), at)) {
                int got = stream.readNBytes(some, 0, some.length);
                assertArrayEquals(Arrays.copyOfRange(segment.log(), at, at + got), Arrays.copyOf(some, got));
                at += got < some.length ? got : got - 70_000;
            }
        }
        assertEquals(1, opened() - before);
    }

    @Test
    void readersAtOnceEachHaveAFileAndLeaveNoneOpen() throws Exception {
        Stored segment = stored("many", 80);
        for (int round = 0; round < 3; round++) {
            InputStream[] streams = new InputStream[200]; // more than fetch.connections.max
            for (int i = 0; i < streams.length; i++) {
                streams[i] = storage.fetchLogSegment(segment.metadata(), 1_000 * i);
            }
            for (int i = 0; i < streams.length; i++) {
                assertEquals(segment.log()[1_000 * i], (byte) streams[i].read());
                streams[i].close();
            }
            assertTrue(descriptors(segment.metadata()) <= 16, "a few are kept for whoever reads on");
        }
        Wait.until("not for long", () -> descriptors(segment.metadata()) == 0);
    }

    @Test
    void aDeletedSegmentIsGoneAtOnceAndWhoeverReadsItReadsOn() throws Exception {
        Stored segment = stored("deleted", 80);
        try (InputStream reading = storage.fetchLogSegment(segment.metadata(), 0)) {
            assertEquals(segment.log()[0], (byte) reading.read());
            var deleting = Segments.update(segment.metadata(), segment.metadata().customMetadata(),
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED);
            metadata.updateRemoteLogSegmentMetadata(deleting).get(10, TimeUnit.SECONDS);
            storage.deleteLogSegmentData(segment.metadata().createWithUpdates(deleting));
            assertThrows(RemoteResourceNotFoundException.class, () -> storage.fetchLogSegment(segment.metadata(), 0));
            assertArrayEquals(Arrays.copyOfRange(segment.log(), 1, segment.log().length), reading.readAllBytes());
        }
    }

    @Test
    void anInterruptEndsAStreamAndNothingElse() throws Exception {
        Stored segment = stored("hurried", 80);
        try (InputStream hurried = storage.fetchLogSegment(segment.metadata(), 0);
             InputStream other = storage.fetchLogSegment(segment.metadata(), 1)) {
            Thread.currentThread().interrupt();
            assertThrows(ClosedByInterruptException.class, () -> hurried.read());
            assertTrue(Thread.interrupted(), "the flag is left set");
            assertThrows(IOException.class, () -> hurried.read(), "a stream that broke stays so");
            assertEquals(segment.log()[1], (byte) other.read());
        }
        assertArrayEquals(segment.log(), read(storage.fetchLogSegment(segment.metadata(), 0)));
    }

    // --- a daemon that names what the broker cannot open

    private static final byte[] BYTES = "0123456789".getBytes();
    private static final RemoteLogSegmentMetadata TEN =
        Segments.started(Segments.ORDERS, 0, 9, BYTES.length);

    private static void nameOf(MessagePacker packer, Path path, Path seen) throws IOException {
        Map<String, Object> at = Files.readAttributes(seen, "unix:dev,ino");
        packer.packArrayHeader(3).packInt(0).packNil();
        packer.packArrayHeader(3).packString(path.toString())
            .packLong(((Number) at.get("dev")).longValue()).packLong(((Number) at.get("ino")).longValue());
    }

    /** Names files, and answers with the bytes where it may not. */
    private static RudeDaemon.Answering naming(RudeDaemon rude, List<Boolean> mayOpen, Path path, Path seen) {
        return id -> {
            boolean asked = rude.params.get(4).asBooleanValue().getBoolean();
            mayOpen.add(asked);
            if (asked) {
                return RudeDaemon.answer(id, packer -> nameOf(packer, path, seen));
            }
            int from = rude.params.get(1).asIntegerValue().asInt();
            byte[] header = RudeDaemon.answer(id, packer -> packer.packArrayHeader(2).packInt(BYTES.length - from).packNil());
            byte[] all = Arrays.copyOf(header, header.length + BYTES.length - from);
            System.arraycopy(BYTES, from, all, header.length, BYTES.length - from);
            return all;
        };
    }

    private static RlmmDaemonStorageManager of(RudeDaemon rude) throws Exception {
        RlmmDaemonStorageManager manager = new RlmmDaemonStorageManager();
        manager.configure(rude.configs(Map.of(PluginConfig.BROKER_ID, BROKER)));
        Wait.until("connected", () -> (boolean) ManagementFactory.getPlatformMBeanServer().getAttribute(
            new ObjectName("rlmm.daemon:type=connection,part=storage,broker=" + BROKER), "Connected"));
        return manager;
    }

    @Test
    void whatCannotBeOpenedIsReadThroughTheSocketUntilTheDaemonIsAnother() throws Exception {
        Path directory = Files.createTempDirectory("rlmm");
        Path file = Files.write(directory.resolve("the.log"), BYTES);
        Path other = Files.write(directory.resolve("other.log"), "9876543210".getBytes());
        Path link = Files.createSymbolicLink(directory.resolve("link.log"), file);
        Map<Path, Path> unfit = Map.of(directory.resolve("gone.log"), file, other, file, link, file);
        for (var each : unfit.entrySet()) {
            List<Boolean> mayOpen = new CopyOnWriteArrayList<>();
            try (RudeDaemon rude = new RudeDaemon(); RlmmDaemonStorageManager manager = of(rude)) {
                rude.answer("fetch_log_segment", naming(rude, mayOpen, each.getKey(), each.getValue()));
                assertArrayEquals(BYTES, read(manager.fetchLogSegment(TEN, 0)), each.toString());
                assertArrayEquals(Arrays.copyOfRange(BYTES, 4, 10), read(manager.fetchLogSegment(TEN, 4)));
                assertEquals(List.of(true, false, false), mayOpen, "asked for a name once");
                rude.hangUp();
                Wait.until("asked for a name again", () -> {
                    assertArrayEquals(BYTES, read(manager.fetchLogSegment(TEN, 0)));
                    return mayOpen.lastIndexOf(true) > 0;
                });
                assertEquals(0, count(BROKER, "FilesOpened"));
            }
        }
    }

    @Test
    void oneThatCannotBeOpenedEndsItForAWhileAndOneThatCanBeginsItAgain() throws Exception {
        Path directory = Files.createTempDirectory("rlmm");
        Map<String, Object> seen = Files.readAttributes(Files.write(directory.resolve("the.log"), BYTES), "unix:dev,ino");
        LocalFile there = new LocalFile(directory.resolve("the.log").toString(),
            ((Number) seen.get("dev")).longValue(), ((Number) seen.get("ino")).longValue());
        LocalFile gone = new LocalFile(directory.resolve("gone.log").toString(), there.device(), there.inode());
        LocalFiles patient = new LocalFiles(true, 600_000);
        assertNull(patient.open(gone, true));
        assertFalse(patient.mayOpen());
        patient.askAgain();
        assertTrue(patient.mayOpen());
        LocalFiles quick = new LocalFiles(true, 50);
        assertNull(quick.open(gone, true));
        Wait.until("it is tried again", quick::mayOpen);
        assertNull(quick.open(gone, true));
        quick.open(there, true).close();
        assertTrue(quick.mayOpen());
        assertFalse(new LocalFiles(false, 0).mayOpen());
    }

    @Test
    void aFileThatEndsTooSoonIsAnErrorAndNeverAnEnd() throws Exception {
        Path file = Files.write(Files.createTempDirectory("rlmm").resolve("short.log"), Arrays.copyOf(BYTES, 6));
        try (RudeDaemon rude = new RudeDaemon(); RlmmDaemonStorageManager manager = of(rude)) {
            rude.answer("fetch_log_segment", naming(rude, new CopyOnWriteArrayList<>(), file, file));
            assertThrows(EOFException.class, () -> read(manager.fetchLogSegment(TEN, 0)));
            assertEquals(1, count(BROKER, "StreamsBroken"));
        }
    }

    @Test
    void aDaemonThatNamesNothingIsReadThroughTheSocket() throws Exception {
        try (RudeDaemon rude = new RudeDaemon(); RlmmDaemonStorageManager manager = of(rude)) {
            rude.answer("fetch_log_segment", id -> {
                byte[] header = RudeDaemon.answer(id, p -> p.packArrayHeader(3).packInt(BYTES.length).packNil().packNil());
                byte[] all = Arrays.copyOf(header, header.length + BYTES.length);
                System.arraycopy(BYTES, 0, all, header.length, BYTES.length);
                return all;
            });
            assertArrayEquals(BYTES, read(manager.fetchLogSegment(TEN, 0)));
            assertEquals(0, count(BROKER, "FilesOpened"));
        }
    }
}
