package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.EPOCH;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.io.InputStream;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** How long the broker's threads wait for a daemon, and what is not worth waiting for. */
final class PatienceTest {
    private static void lead(RlmmDaemonMetadataManager manager) throws Exception {
        manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
        Wait.until("ready", () -> manager.isReady(ORDERS));
    }

    private static <T> CompletableFuture<T> inAThread(Callable<T> call) {
        CompletableFuture<T> result = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                result.complete(call.call());
            } catch (Throwable error) {
                result.completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        Wait.untilBlocked(thread);
        return result;
    }

    /** The broker would roll the copy back, and answer the consumer with an error, for a daemon that is on its way. */
    @Test
    void aCopyAndAFetchAreHeldAndDoneIfTheDaemonComesMeanwhile() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            metadata.configure(daemon.configs(Map.of()), () -> 1);
            lead(metadata);
            Segments.OnDisk segment = Segments.write(daemon.logDir(), ORDERS, 0, 1);
            metadata.addRemoteLogSegmentMetadata(segment.metadata()).get(10, TimeUnit.SECONDS);
            Optional<CustomMetadata> custom = held(daemon, storage ->
                storage.copyLogSegmentData(segment.metadata(), segment.data()));
            var update = Segments.update(segment.metadata(), custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
            metadata.updateRemoteLogSegmentMetadata(update).get(10, TimeUnit.SECONDS);
            RemoteLogSegmentMetadata stored = segment.metadata().createWithUpdates(update);
            int read = held(daemon, storage -> {
                try (InputStream stream = storage.fetchLogSegment(stored, 0)) {
                    return stream.readAllBytes().length;
                }
            });
            assertEquals(stored.segmentSizeInBytes(), read);
        }
    }

    /** What is asked every few seconds of each long copy must not make the daemon walk through all it knows. */
    @Test
    void aDaemonThatCopiesIsAskedForNothingThatCostsIt(@TempDir Path logDir) throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            storage.configure(daemon.configs(Map.of()));
            Wait.until("connected", () -> OutageTest.connected("storage", 9));
            daemon.answer("copy_log_segment_data", id -> new byte[0]);
            Segments.OnDisk segment = Segments.write(logDir, ORDERS, 0, 1);
            CompletableFuture<?> copy = inAThread(() -> storage.copyLogSegmentData(segment.metadata(), segment.data()));
            Wait.until("it is asked again", () -> daemon.asked.size() >= 3);
            assertEquals(List.of("hello", "copy_log_segment_data", "is_ready"), List.copyOf(daemon.asked).subList(0, 3));
            assertFalse(copy.isDone());
        }
    }

    @FunctionalInterface
    private interface Use<T> {
        T of(RlmmDaemonStorageManager storage) throws Exception;
    }

    /** What a call comes to that begins while there is no socket, which then is there. */
    private static <T> T held(DaemonProcess daemon, Use<T> use) throws Exception {
        Path link = daemon.socket().resolveSibling("link");
        try (RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            storage.configure(daemon.configs(Map.of("hold.ms", 10_000, "socket.path", link.toString())));
            CompletableFuture<T> result = inAThread(() -> use.of(storage));
            assertFalse(result.isDone());
            Files.createSymbolicLink(link, daemon.socket());
            return result.get(30, TimeUnit.SECONDS);
        } finally {
            Files.deleteIfExists(link);
        }
    }

    /** An empty answer would make the broker reset a consumer. */
    @ParameterizedTest
    @ValueSource(ints = {DaemonException.NOT_READY, DaemonException.OVERLOADED, DaemonException.DRAINING})
    void aDaemonThatCannotAnswerNowIsAskedOnceMoreAndIsThenUnavailable(int code) throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager();
             RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            metadata.configure(daemon.configs(Map.of("hold.ms", 50)));
            storage.configure(daemon.configs(Map.of("hold.ms", 50)));
            lead(metadata);
            Wait.until("connected", () -> OutageTest.connected("storage", 9));
            RemoteLogSegmentMetadata segment = Segments.started(ORDERS, 0, 9, 1);
            Map<String, Callable<?>> reads = Map.of(
                "remote_log_segment_metadata", () -> metadata.remoteLogSegmentMetadata(ORDERS, EPOCH, 1),
                "next_segment_with_txn_index", () -> metadata.nextSegmentWithTxnIndex(ORDERS, EPOCH, 1),
                "highest_offset_for_epoch", () -> metadata.highestOffsetForEpoch(ORDERS, EPOCH),
                "list_remote_log_segments", () -> metadata.listRemoteLogSegments(ORDERS),
                "remote_log_size", () -> metadata.remoteLogSize(ORDERS, EPOCH),
                "fetch_log_segment", () -> storage.fetchLogSegment(segment, 0),
                "fetch_index", () -> storage.fetchIndex(segment, IndexType.TRANSACTION));
            boolean again = false;
            for (Map.Entry<String, Callable<?>> read : reads.entrySet()) {
                AtomicInteger asked = new AtomicInteger();
                daemon.answer(read.getKey(), id -> {
                    asked.incrementAndGet();
                    return RudeDaemon.error(id, code);
                });
                assertThrows(ReplicaNotAvailableException.class, () -> read.getValue().call(), read.getKey());
                assertTrue(asked.get() <= 2, read.getKey() + " was asked " + asked + " times");
                again |= asked.get() == 2;
            }
            assertTrue(again, "none was asked once more, not even on a slow machine"); // where an answer takes all of hold.ms
        }
    }

    @Test
    void aDaemonThatCopiesForLongAndSaysHowItIsKeepsItsConnection() throws Exception {
        Path directory = Files.createTempDirectory("long-copy");
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            Segments.OnDisk of = Segments.write(directory, ORDERS, 0, 1);
            daemon.answer("copy_log_segment_data", id -> new byte[0]);
            storage.configure(daemon.configs(Map.of("copy.timeout.ms", 16_000)));
            Wait.until("connected", () -> OutageTest.connected("storage", 9));
            String why = assertThrows(RemoteStorageException.class,
                () -> storage.copyLogSegmentData(of.metadata(), of.data())).getMessage();
            assertTrue(why.contains("did not answer copy_log_segment_data within 16000 ms"), why);
        } finally {
            delete(directory);
        }
    }

    private static void delete(Path directory) throws Exception {
        try (var files = Files.walk(directory)) {
            for (Path file : files.sorted(java.util.Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** Others are answered meanwhile, so it is not the connection's end that ends it. */
    @Test
    void aWriteThatIsNeverAnsweredEndsAtItsDeadline() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            metadata.configure(daemon.configs(Map.of("metadata.timeout.ms", 300)));
            lead(metadata);
            daemon.answer("add_remote_log_segment_metadata", id -> new byte[0]);
            var write = metadata.addRemoteLogSegmentMetadata(Segments.started(ORDERS, 0, 9, 1));
            Wait.until("its deadline passed", () -> {
                metadata.isReady(ORDERS);
                return write.isDone();
            });
            ExecutionException error = assertThrows(ExecutionException.class, write::get);
            assertInstanceOf(ReplicaNotAvailableException.class, error.getCause());
            assertTrue(error.getMessage().contains("did not answer"), error.getMessage());
        }
    }

    /** The broker's threads that ask: a replica fetcher, which nobody interrupts, readers, and copiers. */
    @Test
    void anIndexAFetchAndACopyEndAtDeadlinesOfTheirOwnOfWhichTheDaemonIsTold() throws Exception {
        Path directory = Files.createTempDirectory("deadlines");
        Segments.OnDisk of = Segments.write(directory, ORDERS, 0, 1);
        try (RudeDaemon daemon = new RudeDaemon()) {
            String why = silent(daemon, "index.timeout.ms", "fetch_index",
                storage -> storage.fetchIndex(of.metadata(), IndexType.LEADER_EPOCH));
            assertTrue(why.contains("did not answer fetch_index within 300 ms"), why);
            assertEquals(150, daemon.params.get(2).asIntegerValue().asInt());
            why = silent(daemon, "fetch.timeout.ms", "fetch_log_segment", storage -> storage.fetchLogSegment(of.metadata(), 0));
            assertTrue(why.contains("did not answer fetch_log_segment within 300 ms"), why);
            assertEquals(150, daemon.params.get(3).asIntegerValue().asInt());
            why = silent(daemon, "copy.timeout.ms", "copy_log_segment_data",
                storage -> storage.copyLogSegmentData(of.metadata(), of.data()));
            assertTrue(why.contains("did not answer copy_log_segment_data within 300 ms"), why);
            assertEquals(150, daemon.params.get(2).asIntegerValue().asInt());
        } finally {
            delete(directory);
        }
    }

    /** What is said of a call that is not answered, where this key is 300 ms and every other one of them 10 minutes. */
    private static String silent(RudeDaemon daemon, String key, String method, Use<?> use) throws Exception {
        Map<String, Object> configs = new HashMap<>(Map.of("index.timeout.ms", 600_000, "fetch.timeout.ms", 600_000,
            "copy.timeout.ms", 600_000, "delete.timeout.ms", 600_000));
        configs.put(key, 300);
        daemon.answer(method, id -> new byte[0]);
        try (RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager()) {
            storage.configure(daemon.configs(configs));
            Wait.until("connected", () -> OutageTest.connected("storage", 9));
            Exception error = assertThrows(Exception.class, () -> use.of(storage));
            Class<?> expected = method.startsWith("copy") ? RemoteStorageException.class : ReplicaNotAvailableException.class;
            assertEquals(expected, error.getClass());
            return error.getMessage();
        }
    }

    @Test
    void aWriteInFlightEndsWithTheManager() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            metadata.configure(daemon.configs(Map.of("metadata.timeout.ms", 600_000)));
            lead(metadata);
            daemon.answer("add_remote_log_segment_metadata", id -> new byte[0]);
            var write = metadata.addRemoteLogSegmentMetadata(Segments.started(ORDERS, 0, 9, 1));
            assertFalse(write.isDone());
            metadata.close();
            ExecutionException error = assertThrows(ExecutionException.class, () -> write.get(30, TimeUnit.SECONDS));
            assertInstanceOf(ReplicaNotAvailableException.class, error.getCause());
        }
    }

    /** As for a user that may only read. Only lower bounds, as below. */
    @Test
    void announcementsThatAreRefusedAreSaidAgainMoreAndMoreSeldom() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            List<Long> said = new CopyOnWriteArrayList<>();
            daemon.answer("replace_assignment", id -> {
                said.add(System.nanoTime());
                return RudeDaemon.error(id, DaemonException.UNAUTHORIZED);
            });
            metadata.configure(daemon.configs(Map.of()));
            Wait.until("it is said six times", () -> said.size() >= 6);
            long tookMs = TimeUnit.NANOSECONDS.toMillis(said.get(5) - said.get(0));
            assertTrue(tookMs >= 200 + 400 + 800 + 1_600 + 3_200, tookMs + " ms");
        }
    }

    @Test
    void whatIsAnnouncedBeforeAManagerIsConfiguredIsSaidWithItsFirstConnection() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            assertFalse(metadata.isReady(ORDERS));
            assertFalse(metadata.isReady(null));
            TopicIdPartition stopped = Segments.partition("stopped", 0);
            metadata.onPartitionLeadershipChanges(Set.of(ORDERS, stopped), Set.of());
            metadata.onStopPartitions(Set.of(stopped));
            assertThrows(NullPointerException.class, () -> metadata.onPartitionLeadershipChanges(null, Set.of()));
            assertThrows(NullPointerException.class, () -> metadata.onPartitionLeadershipChanges(Set.of(), null));
            assertThrows(NullPointerException.class, () -> metadata.onStopPartitions(null));
            assertThrows(IllegalStateException.class, () -> metadata.highestOffsetForEpoch(ORDERS, EPOCH));
            daemon.answer("replace_assignment", id -> RudeDaemon.answer(id, packer -> packer.packNil()));
            metadata.configure(daemon.configs(Map.of()));
            Wait.until("ready", () -> metadata.isReady(ORDERS));
            assertEquals(1, daemon.params.get(0).asArrayValue().size());
            assertEquals("orders", daemon.params.get(0).asArrayValue().get(0).asArrayValue().get(1).toString());
        }
    }

    /** Only lower bounds: whatever else the machine does makes a pause longer. */
    @Test
    void thePausesBetweenAttemptsGrowUpToTheirBound() throws Exception {
        Path directory = Files.createTempDirectory("pauses");
        Path socket = directory.resolve("s");
        try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
             RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager()) {
            server.bind(UnixDomainSocketAddress.of(socket));
            metadata.configure(Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "c",
                PluginConfig.SOCKET_PATH, socket.toString(), PluginConfig.SINGLE_BROKER_CHECK, "false",
                "reconnect.ms", "50", "reconnect.max.ms", "400"));
            server.accept().close();
            long begun = System.nanoTime();
            for (int i = 0; i < 5; i++) { // at least 50, 100, 200, 200 and 200 ms, one of them in part already over
                server.accept().close();
            }
            long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
            assertTrue(tookMs >= 650, tookMs + " ms");
        } finally {
            Files.deleteIfExists(socket);
            Files.delete(directory);
        }
    }
}
