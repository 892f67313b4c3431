package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.UserPrincipal;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.msgpack.core.MessagePacker;

/** What somebody can do who listens on the socket and is not the daemon, or is one that has gone astray. */
final class PeersTest {
    private static final String FETCH = "fetch_log_segment";
    private static final byte[] BYTES = "0123456789".getBytes();
    private static final RemoteLogSegmentMetadata TEN = Segments.started(Segments.ORDERS, 0, 9, BYTES.length);

    private record User(String name) implements UserPrincipal {
        @Override
        public String getName() {
            return name;
        }
    }

    /** Who is there says the name. */
    private static Peers peers(String peer, String only) {
        return new Peers(only) {
            @Override
            UserPrincipal own() {
                return new User("kafka");
            }

            @Override
            UserPrincipal peer(SocketChannel channel) {
                return peer == null ? null : new User(peer);
            }
        };
    }

    @Test
    void onlyTheBrokersOwnUserRootAndTheUsualOneMayNameFilesUnlessOneIsNamed() throws Exception {
        for (String known : new String[]{"kafka", "root", "rlmm"}) {
            assertTrue(peers(known, "").mayNameFiles(null), known);
        }
        assertFalse(peers("mallory", "").mayNameFiles(null));
        assertFalse(peers(null, "").mayNameFiles(null), "nobody knows who it is");
        assertTrue(peers("mallory", "mallory").mayNameFiles(null));
        for (String other : new String[]{"kafka", "root", "rlmm", null}) {
            DaemonException refusal = assertThrows(
                DaemonException.class, () -> peers(other, "mallory").mayNameFiles(null), other);
            assertTrue(refusal.getMessage().contains("daemon.user"), refusal.getMessage());
        }
    }

    private static RlmmDaemonStorageManager of(RudeDaemon rude, Map<String, Object> more) throws Exception {
        RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager();
        storage.configure(rude.configs(more));
        Wait.until("connected", () -> OutageTest.connected("storage", 9));
        return storage;
    }

    private static byte[] read(RlmmDaemonStorageManager storage) throws Exception {
        try (InputStream stream = storage.fetchLogSegment(TEN, 0)) {
            return stream.readAllBytes();
        }
    }

    /** By the kernel's word on who listens. */
    @Test
    void anotherUsersDaemonIsNotSpokenToWhereOneIsNamed() throws Exception {
        String own = Files.getOwner(Path.of("/proc/self")).getName();
        Object number = Files.getAttribute(Path.of("/proc/self"), "unix:uid");
        try (RudeDaemon rude = new RudeDaemon()) {
            rude.answer(FETCH, id -> bytes(id));
            for (Object right : List.of(own, number.toString())) {
                try (RlmmDaemonStorageManager storage = of(rude, Map.of("daemon.user", right))) {
                    assertArrayEquals(BYTES, read(storage));
                }
            }
            rude.asked.clear();
            try (RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager();
                 RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
                storage.configure(rude.configs(Map.of("daemon.user", "4000000")));
                metadata.configure(rude.configs(Map.of("daemon.user", "4000000")));
                assertThrows(ReplicaNotAvailableException.class, () -> read(storage));
                assertThrows(ReplicaNotAvailableException.class, () -> metadata.listRemoteLogSegments(Segments.ORDERS));
                assertEquals(0, rude.asked.size(), "not even hello was said");
            }
        }
    }

    private static byte[] bytes(int id) throws IOException {
        byte[] header = RudeDaemon.answer(id, packer -> packer.packArrayHeader(3).packInt(BYTES.length).packNil().packNil());
        byte[] all = Arrays.copyOf(header, header.length + BYTES.length);
        System.arraycopy(BYTES, 0, all, header.length, BYTES.length);
        return all;
    }

    private static void name(MessagePacker packer, int length, Path path) throws IOException {
        Map<String, Object> at = Files.readAttributes(path, "unix:dev,ino");
        packer.packArrayHeader(3).packInt(length).packNil();
        packer.packArrayHeader(3).packString(path.toString())
            .packLong(((Number) at.get("dev")).longValue()).packLong(((Number) at.get("ino")).longValue());
    }

    /** As of somebody who may write where the socket lies, and wants to read what only the broker may. */
    @Test
    void aFileThatAStrangerNamesIsNotOpened(@TempDir Path directory) throws Exception {
        Path secret = Files.write(directory.resolve("secret"), "the secret".getBytes());
        List<Boolean> mayOpen = new CopyOnWriteArrayList<>();
        try (RudeDaemon rude = new RudeDaemon()) {
            rude.answer(FETCH, id -> {
                boolean asked = rude.params.get(0).asBooleanValue().getBoolean();
                mayOpen.add(asked);
                return asked ? RudeDaemon.answer(id, packer -> name(packer, 0, secret)) : bytes(id);
            });
            PluginConfig config = new PluginConfig(rude.configs(Map.of()), false);
            try (PluginMetrics metrics = new PluginMetrics("peers", 9)) {
                assertEquals("the secret", read(new BulkPool(config, metrics, peers("rlmm", ""))));
                assertEquals("0123456789", read(new BulkPool(config, metrics, peers("mallory", ""))));
                assertEquals(List.of(true, true, false), mayOpen);
                assertEquals(1, metrics.filesOpened.get());
            }
        }
    }

    private static String read(BulkPool pool) throws Exception {
        BulkCursor.Source source = (from, to, mayOpen) -> pool.request(
            FETCH, packer -> packer.packArrayHeader(1).packBoolean(mayOpen), 10_000);
        BulkCursor cursor = BulkCursor.ofSegment(pool, source, TEN.remoteLogSegmentId().id(), 0, 9, 10_000);
        try (pool; InputStream stream = new BulkStream(cursor, 0)) {
            return new String(stream.readAllBytes());
        }
    }

    /** Opening one would wait for whoever writes into it. */
    @Test
    void aPipeIsNotOpened(@TempDir Path directory) throws Exception {
        Path pipe = directory.resolve("pipe");
        assertEquals(0, new ProcessBuilder("mkfifo", pipe.toString()).start().waitFor());
        Map<String, Object> at = Files.readAttributes(pipe, "unix:dev,ino");
        LocalFile named = new LocalFile(pipe.toString(),
            ((Number) at.get("dev")).longValue(), ((Number) at.get("ino")).longValue());
        assertThrows(IOException.class, named::open);
    }

    /** Each is refused, its connection is closed, and what is asked next on another is answered right. */
    @Test
    void anAnswerThatIsOutOfStepEndsItsConnectionAndNoLaterOneIsTakenForAnother(@TempDir Path directory) throws Exception {
        Path file = Files.write(directory.resolve("file"), BYTES);
        Map<String, RudeDaemon.Answering> astray = Map.of(
            "the answer to the next request", id -> bytes(id + 1),
            "a file with a length", id -> RudeDaemon.answer(id, packer -> name(packer, 10, file)),
            "an error of the connection", id -> RudeDaemon.error(Wire.CONNECTION_ID, DaemonException.INVALID_ARGUMENT),
            "a header of four megabytes", id -> RudeDaemon.frame(new byte[4 * 1024 * 1024]),
            "another's error", id -> RudeDaemon.error(id - 1, DaemonException.SEGMENT_NOT_FOUND));
        for (Map.Entry<String, RudeDaemon.Answering> each : astray.entrySet()) {
            try (RudeDaemon rude = new RudeDaemon(); RlmmDaemonStorageManager storage = of(rude, Map.of("hold.ms", 0))) {
                rude.answer(FETCH, each.getValue());
                assertThrows(Exception.class, () -> read(storage), each.getKey());
                rude.answer(FETCH, id -> bytes(id));
                rude.asked.clear();
                assertArrayEquals(BYTES, read(storage), each.getKey());
                assertEquals(List.of("hello", FETCH), List.copyOf(rude.asked), each.getKey());
            }
        }
    }

    @Test
    void aReaderOfManyMegabytesKeepsLittleMemoryOutsideOfTheHeap() throws Exception {
        int size = 24 * 1024 * 1024;
        BufferPoolMXBean direct = ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
            .filter(pool -> pool.getName().equals("direct")).findFirst().orElseThrow();
        try (RudeDaemon rude = new RudeDaemon()) {
            rude.answer(FETCH, id -> {
                byte[] header = RudeDaemon.answer(id, packer -> packer.packArrayHeader(2).packInt(size).packNil());
                return Arrays.copyOf(header, header.length + size);
            });
            PluginConfig config = new PluginConfig(rude.configs(Map.of()), false);
            try (PluginMetrics metrics = new PluginMetrics("peers", 9); BulkPool pool = new BulkPool(config, metrics)) {
                BulkPool.Begun begun = pool.request(FETCH, packer -> packer.packArrayHeader(0), 30_000);
                byte[] target = new byte[size];
                long before = direct.getMemoryUsed();
                for (int at = 0; at < size;) {
                    at += begun.connection().read(target, at, size - at, 30_000);
                }
                long kept = direct.getMemoryUsed() - before;
                assertTrue(kept < 4 * 1024 * 1024, kept + " bytes");
                pool.giveBack(begun.connection(), true);
            }
        }
    }
}
