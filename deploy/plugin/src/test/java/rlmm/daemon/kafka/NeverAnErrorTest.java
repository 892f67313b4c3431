package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.EPOCH;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;

import javax.management.ObjectName;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Whatever comes over the socket, a call ends with a class that the broker tells apart: an {@link Error} would end its
 * task for good without a word, and a RuntimeException of a library would skip what it does after a failed copy.
 */
final class NeverAnErrorTest {
    private static final int NESTED = 1_000_000;
    @TempDir
    static Path logs;
    private static RudeDaemon daemon;
    private static RlmmDaemonMetadataManager metadata;
    private static RlmmDaemonStorageManager storage;

    @BeforeAll
    static void start() throws Exception {
        daemon = new RudeDaemon();
        Map<String, Object> configs = Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "rude",
            PluginConfig.SOCKET_PATH, daemon.socket().toString(), PluginConfig.SINGLE_BROKER_CHECK, "false",
            "hold.ms", "0", "reconnect.ms", "2", "reconnect.max.ms", "4", "delete.fail.fast.ms", "1");
        metadata = new RlmmDaemonMetadataManager();
        metadata.configure(configs);
        storage = new RlmmDaemonStorageManager();
        storage.configure(configs);
    }

    @AfterAll
    static void end() throws Exception {
        storage.close();
        metadata.close();
        daemon.close();
    }

    /** By the name of the method on the socket, in which a wrong answer is given. */
    private static Map<String, Callable<?>> calls() {
        RemoteLogSegmentMetadata segment = Segments.started(ORDERS, 0, 9, 100);
        var finished = Segments.update(segment, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED);
        var deleted = new RemotePartitionDeleteMetadata(ORDERS, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 5, 9);
        Map<String, Callable<?>> calls = new LinkedHashMap<>();
        calls.put("is_ready", () -> metadata.isReady(ORDERS));
        calls.put("remote_log_segment_metadata", () -> metadata.remoteLogSegmentMetadata(ORDERS, EPOCH, 5));
        calls.put("next_segment_with_txn_index", () -> metadata.nextSegmentWithTxnIndex(ORDERS, EPOCH, 5));
        calls.put("highest_offset_for_epoch", () -> metadata.highestOffsetForEpoch(ORDERS, EPOCH));
        calls.put("list_remote_log_segments", () -> MetadataManagerTest.all(metadata.listRemoteLogSegments(ORDERS)));
        calls.put("remote_log_size", () -> metadata.remoteLogSize(ORDERS, EPOCH));
        calls.put("add_remote_log_segment_metadata", () -> metadata.addRemoteLogSegmentMetadata(segment).get(30, TimeUnit.SECONDS));
        calls.put("update_remote_log_segment_metadata", () -> metadata.updateRemoteLogSegmentMetadata(finished).get(30, TimeUnit.SECONDS));
        calls.put("put_remote_partition_delete_metadata", () -> metadata.putRemotePartitionDeleteMetadata(deleted).get(30, TimeUnit.SECONDS));
        calls.put("copy_log_segment_data", () -> storage.copyLogSegmentData(
            segment, Segments.write(logs, ORDERS, 0, 1).data()));
        calls.put("delete_log_segment_data", () -> {
            storage.deleteLogSegmentData(segment);
            return null;
        });
        calls.put("fetch_log_segment", () -> read(storage.fetchLogSegment(segment, 0)));
        calls.put("fetch_index", () -> read(storage.fetchIndex(segment, IndexType.OFFSET)));
        return calls;
    }

    private static int read(InputStream stream) throws Exception {
        try (stream) {
            return stream.readAllBytes().length;
        }
    }

    private static byte[] repeated(int value, int count) {
        byte[] bytes = new byte[count];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    static Stream<Arguments> answers() {
        return Stream.of(
            answer("arrays in arrays without end", id -> RudeDaemon.answer(id, p -> p.writePayload(repeated(0x91, NESTED)))),
            answer("maps in maps without end", id -> RudeDaemon.answer(id, p -> p.writePayload(repeated(0x81, NESTED)))),
            answer("arrays in arrays, and an end", id -> RudeDaemon.answer(id,
                p -> p.writePayload(repeated(0x91, NESTED)).packNil())),
            answer("an array of two thousand millions", id -> RudeDaemon.answer(id, p -> p.packArrayHeader(Integer.MAX_VALUE))),
            answer("a map of as many", id -> RudeDaemon.answer(id, p -> p.packMapHeader(Integer.MAX_VALUE))),
            answer("bytes of as many", id -> RudeDaemon.answer(id, p -> p.packBinaryHeader(Integer.MAX_VALUE))),
            answer("a string of as many", id -> RudeDaemon.answer(id, p -> p.packRawStringHeader(Integer.MAX_VALUE))),
            answer("a map", id -> RudeDaemon.answer(id, p -> p.packMapHeader(1).packString("a").packInt(1))),
            answer("a string", id -> RudeDaemon.answer(id, p -> p.packString("well"))),
            answer("a fraction", id -> RudeDaemon.answer(id, p -> p.packDouble(0.5))),
            answer("an array of nothing", id -> RudeDaemon.answer(id, p -> p.packArrayHeader(0))),
            answer("a page that is none", id -> RudeDaemon.answer(id, p -> p.packArrayHeader(2).packInt(1).packBoolean(false))),
            answer("a number beyond 64 bits", id -> RudeDaemon.answer(id, p -> p.packBigInteger(
                java.math.BigInteger.ONE.shiftLeft(64).subtract(java.math.BigInteger.ONE)))),
            answer("a record that is none", id -> RudeDaemon.answer(id, p -> p.packBinaryHeader(3).writePayload(new byte[]{1, 0, 9}))),
            answer("a length below nothing", id -> RudeDaemon.answer(id, p -> p.packArrayHeader(2).packInt(-5).packNil())),
            answer("an error without a shape", id -> RudeDaemon.frame(new byte[]{(byte) 0x94, 1, (byte) id, (byte) 0xa1, 'x', (byte) 0xc0})),
            answer("an error of a later version, for now", id -> RudeDaemon.error(id, 298)),
            answer("one for good", id -> RudeDaemon.error(id, 198)),
            answer("one of damage", id -> RudeDaemon.error(id, 398)),
            answer("one of a branch of its own", id -> RudeDaemon.error(id, 500)),
            answer("one beyond all numbers", id -> RudeDaemon.error(id, Integer.MAX_VALUE)),
            answer("one below them", id -> RudeDaemon.error(id, -7)),
            answer("no answer at all", id -> RudeDaemon.frame(new byte[]{(byte) 0xc1})),
            answer("a frame of four thousand millions", id -> repeated(0xff, 8)));
    }

    private static Arguments answer(String name, RudeDaemon.Answering answering) {
        return Arguments.of(name, answering);
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("answers")
    void whateverIsAnsweredTheBrokerGetsAClassThatItKnowsAndTheNextCallWorks(
            String name, RudeDaemon.Answering answering) throws Exception {
        for (Map.Entry<String, Callable<?>> call : calls().entrySet()) {
            daemon.answer(null, null);
            Wait.until("connected", () -> metadata.isReady(ORDERS) && connected("storage"));
            daemon.answer(call.getKey(), answering);
            Throwable thrown = thrownBy(call.getValue());
            String what = name + ", to " + call.getKey() + ": " + thrown;
            if (call.getKey().equals("is_ready")) {
                assertTrue(thrown == null, what);
            } else if (thrown != null) {
                assertTrue(isKnown(thrown), what);
                boolean rolledBack = thrown instanceof RemoteStorageException;
                assertTrue(rolledBack || !call.getKey().startsWith("copy"), what);
            } else { // only where the result means nothing, or this one is right
                assertFalse(call.getKey().startsWith("fetch") || call.getKey().startsWith("list"), what);
            }
        }
    }

    @Test
    void anErrorOnTheConnectionsOwnThreadCostsAConnectionAndNotTheThread() throws Exception {
        PluginConfig config = new PluginConfig(Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "rude",
            PluginConfig.SOCKET_PATH, daemon.socket().toString(), "reconnect.ms", "2"), true);
        PluginMetrics metrics = new PluginMetrics("own", 9);
        AtomicReference<Connection> made = new AtomicReference<>();
        Connection.Owner owner = new Connection.Owner() {
            @Override
            public void onGreeted(Greeting.Welcome welcome) {
                made.get().open();
            }

            @Override
            public void onTick() {
                // Nothing to do.
            }
        };
        try (metrics; Connection connection = new Connection(config, Greeting.METADATA, owner, metrics)) {
            made.set(connection);
            connection.start();
            Wait.until("connected", connection::isOpen);
            Call bad = new Call("bad", false, packer -> {
                throw new StackOverflowError();
            }, 60_000);
            connection.submit(bad);
            ExecutionException error = assertThrows(ExecutionException.class, () -> bad.future.get(50, TimeUnit.SECONDS));
            assertInstanceOf(DaemonException.class, error.getCause());
            Wait.until("connected again", connection::isOpen);
            Call good = new Call("is_ready", false, packer -> packer.packArrayHeader(0), 60_000);
            connection.submit(good);
            assertTrue(good.future.get(50, TimeUnit.SECONDS).get(0).isYes());
        }
    }

    private static boolean isKnown(Throwable thrown) {
        return thrown instanceof ReplicaNotAvailableException || thrown instanceof RemoteStorageException;
    }

    private static Throwable thrownBy(Callable<?> call) {
        try {
            call.call();
            return null;
        } catch (ExecutionException error) {
            assertNotNull(error.getCause());
            return error.getCause();
        } catch (Throwable error) { // an Error is what must not come
            return error;
        }
    }

    private static boolean connected(String part) throws Exception {
        return (boolean) ManagementFactory.getPlatformMBeanServer().getAttribute(
            new ObjectName("rlmm.daemon:type=connection,part=" + part + ",broker=9"), "Connected");
    }
}
