package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.Test;

/** Whether daemon, broker and cluster belong together. */
final class FitTest {
    @Test
    void aDaemonOfAnotherBrokerOrClusterIsNeverUsedAndTheMessageSaysWhatToDo() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started()) {
            for (Map<String, Object> wrong : List.<Map<String, Object>>of(
                Map.of("broker.id", 8), Map.of("cluster.id", "another"))) {
                Map<String, Object> configs = daemon.configs(wrong);
                configs.put("socket.path", daemon.socket().toString());
                try (RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
                    manager.configure(configs, () -> 1);
                    manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
                    assertThrows(ReplicaNotAvailableException.class, () -> manager.listRemoteLogSegments(ORDERS));
                    assertFalse(manager.isReady(ORDERS));
                }
                PluginConfig config = new PluginConfig(configs, true);
                DaemonException refusal = assertThrows(
                    DaemonException.class, () -> BulkConnection.open(config, new Peers(config), BulkConnection.deadline(5_000)).close());
                String advice = Greeting.advice(config, refusal);
                assertTrue(advice.contains("daemon.broker_id") && advice.contains("socket.path"), advice);
            }
        }
    }

    /** Kafka does not tell it which cluster it is in; who sets it is protected as by the metadata manager. */
    @Test
    void aStorageManagerThatIsToldItsClusterRefusesAnothersDaemon() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started(); RlmmDaemonStorageManager right = new RlmmDaemonStorageManager();
             RlmmDaemonStorageManager wrong = new RlmmDaemonStorageManager()) {
            right.configure(daemon.configs(Map.of("delete.fail.fast.ms", 0)));
            RemoteLogSegmentMetadata unknown = Segments.started(ORDERS, 0, 9, 1);
            Wait.until("connected", () -> !away(right, unknown));
            wrong.configure(daemon.configs(Map.of("cluster.id", "another", "delete.fail.fast.ms", 0)));
            PluginConfig config = new PluginConfig(daemon.configs(Map.of("cluster.id", "another")), false);
            DaemonException refusal = assertThrows(DaemonException.class,
                () -> BulkConnection.open(config, new Peers(config), BulkConnection.deadline(5_000)).close());
            assertEquals(DaemonException.INVALID_ARGUMENT, refusal.code());
            assertTrue(away(wrong, unknown));
        }
    }

    private static boolean away(RlmmDaemonStorageManager manager, RemoteLogSegmentMetadata segment) {
        try {
            manager.deleteLogSegmentData(segment);
            return false;
        } catch (RemoteStorageException refused) {
            return refused.getMessage().contains("no daemon answers");
        }
    }

    @Test
    void aLogThatIsReplicatedNeedsNoClusterToBeAskedAndOneThatIsNotNamedIsRefused() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            daemon.eventLog = null;
            manager.configure(daemon.configs(Map.of(PluginConfig.SINGLE_BROKER_CHECK, "true")), () -> {
                throw new AssertionError("nobody is to ask");
            });
            Wait.until("the refusal says what to do", () -> {
                ReplicaNotAvailableException error = assertThrows(
                    ReplicaNotAvailableException.class, () -> manager.listRemoteLogSegments(ORDERS));
                return error.getMessage().contains("older than this plugin");
            });
            assertFalse(manager.isReady(ORDERS));
            daemon.eventLog = "kafka";
            daemon.hangUp();
            Wait.until("ready", () -> manager.isReady(ORDERS));
        }
    }

    /** As after an upgrade from an embedded log to the cluster's own, while the cluster takes seconds to answer. */
    @Test
    void whatIsFoundOutAboutAnOlderDaemonMeansNothing() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch answer = new CountDownLatch(1);
        CountDownLatch answered = new CountDownLatch(1);
        try (SingleBrokerCheck check = new SingleBrokerCheck(() -> {
            asked.countDown();
            answer.await();
            answered.countDown();
            return 3;
        }, null, true, 1)) {
            check.begin(SingleBrokerCheck.EMBEDDED);
            asked.await();
            check.begin("kafka");
            check.require();
            answer.countDown();
            answered.await();
            check.hurry();
            TimeUnit.MILLISECONDS.sleep(100); // in which it would judge, and ask again
            check.require();
        }
    }

    @Test
    void aUserWithoutAnyRightIsToldWhereToAddIt() {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 7, "cluster.id", "c"), true);
        DaemonException refusal = DaemonException.answered(
            DaemonException.UNAUTHORIZED, "unauthorized", "uid 7 has no right on this socket", Map.of());
        String advice = Greeting.advice(config, refusal);
        assertTrue(advice.startsWith("unauthorized: uid 7") && advice.contains("[socket.rights.write]"), advice);
    }

    @Test
    void anEmbeddedLogIsRefusedInAClusterOfSeveralBrokers() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            manager.configure(daemon.configs(Map.of()), () -> 3);
            manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
            Wait.until("the refusal names its reason", () -> {
                ReplicaNotAvailableException error = assertThrows(
                    ReplicaNotAvailableException.class, () -> manager.listRemoteLogSegments(ORDERS));
                return error.getMessage().contains("3 brokers")
                    && error.getMessage().contains("event_log.single_broker")
                    && error.getMessage().contains("[event_log.quorum.brokers]");
            });
            assertFalse(manager.isReady(ORDERS));
            assertThrows(ReplicaNotAvailableException.class,
                () -> manager.addRemoteLogSegmentMetadata(Segments.started(ORDERS, 0, 9, 1)));
        }
    }

    @Test
    void aClusterThatGrowsIsNoticedAndRefused() throws Exception {
        AtomicInteger brokers = new AtomicInteger(1);
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            manager.configure(daemon.configs(Map.of()), brokers::get, 50);
            manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
            Wait.until("ready", () -> manager.isReady(ORDERS));
            brokers.set(3);
            Wait.until("refused", () -> !manager.isReady(ORDERS));
            brokers.set(1);
            Wait.until("ready again", () -> manager.isReady(ORDERS));
        }
    }

    @Test
    void theClusterIsAskedAgainUntilItAnswers() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManagerWithCallback manager = new RlmmDaemonMetadataManagerWithCallback()) {
            manager.configure(daemon.configs(Map.of()), () -> {
                if (asked.incrementAndGet() < 3) {
                    throw new IllegalStateException("this broker does not serve yet");
                }
                return 1;
            });
            manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
            manager.onBrokerReady();
            Wait.until("ready", () -> manager.isReady(ORDERS));
            assertTrue(asked.get() >= 3);
        }
    }

    /** The cluster may take seconds to answer, and the daemon that was asked about may be another one by then. */
    @Test
    void aDaemonThatComesWhileTheClusterIsAskedIsLookedAtAsWell() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        CountDownLatch answer = new CountDownLatch(1);
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManagerWithCallback manager = new RlmmDaemonMetadataManagerWithCallback()) {
            manager.configure(daemon.configs(Map.of()), () -> {
                asked.incrementAndGet();
                answer.await();
                return 1;
            });
            Wait.until("asked", () -> asked.get() == 1);
            manager.onBrokerReady(); // does what a new connection does
            answer.countDown();
            Wait.until("asked again, long before it would be by itself", () -> asked.get() == 2);
        }
    }

    /** As where the listener wants SASL, and nobody told the plugin. */
    @Test
    void aClusterThatNeverAnswersIsNamedAsTheReasonAndAskedLessOften() throws Exception {
        List<Long> asked = new CopyOnWriteArrayList<>();
        try (DaemonProcess daemon = DaemonProcess.started();
             RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            manager.configure(daemon.configs(Map.of("hold.ms", 0)), () -> {
                asked.add(System.nanoTime());
                throw new ExecutionException(new IllegalStateException("wants SASL"));
            });
            Wait.until("the refusal says why, and what to set", () -> {
                String why = assertThrows(
                    ReplicaNotAvailableException.class, () -> manager.listRemoteLogSegments(ORDERS)).getMessage();
                return why.contains("wants SASL") && why.contains("rlmm.config.remote.log.metadata.common.client.");
            });
            long tookMs = TimeUnit.NANOSECONDS.toMillis(asked.get(5) - asked.get(0));
            assertTrue(tookMs >= 250 + 500 + 1_000 + 2_000 + 4_000, tookMs + " ms");
            assertFalse(manager.isReady(ORDERS));
        }
    }

    @Test
    void withoutAListenerToAskTheEmbeddedLogIsRefusedUnlessVouchedFor() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started()) {
            try (RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
                Map<String, Object> configs = daemon.configs(Map.of());
                configs.remove("remote.log.metadata.common.client.bootstrap.servers");
                manager.configure(configs);
                manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
                Wait.until("the refusal says what to set", () -> {
                    ReplicaNotAvailableException error = assertThrows(
                        ReplicaNotAvailableException.class, () -> manager.listRemoteLogSegments(ORDERS));
                    return error.getMessage().contains("remote.log.metadata.manager.listener.name");
                });
            }
            try (RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
                manager.configure(daemon.configs(Map.of("single.broker.check", "false")));
                manager.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
                Wait.until("ready", () -> manager.isReady(ORDERS));
            }
        }
    }

    @Test
    void bothManagersLoadAndWorkOnTheOldestKafka() throws Exception {
        List<URL> path = new ArrayList<>();
        for (File jar : new File(System.getProperty("kafka.oldest")).listFiles()) {
            path.add(jar.toURI().toURL());
        }
        for (Class<?> ours : new Class<?>[]{
            RlmmDaemonMetadataManager.class, org.msgpack.core.MessagePack.class, org.slf4j.Logger.class,
            org.slf4j.impl.StaticLoggerBinder.class}) {
            path.add(ours.getProtectionDomain().getCodeSource().getLocation());
        }
        try (DaemonProcess daemon = DaemonProcess.started();
             URLClassLoader old = new URLClassLoader(path.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            assertThrows(ClassNotFoundException.class, () -> old.loadClass(
                "org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException"));
            for (String name : new String[]{"RlmmDaemonMetadataManager", "RlmmDaemonStorageManager"}) {
                Object manager = old.loadClass("rlmm.daemon.kafka." + name).getConstructor().newInstance();
                manager.getClass().getMethod("configure", Map.class)
                    .invoke(manager, daemon.configs(Map.of("single.broker.check", "false")));
                Class<?> errors = old.loadClass("rlmm.daemon.kafka.Errors");
                Class.forName(errors.getName(), true, old);
                if (name.contains("Metadata")) {
                    Class<?> partition = old.loadClass("org.apache.kafka.common.TopicIdPartition");
                    Object orders = partition.getConstructor(old.loadClass("org.apache.kafka.common.Uuid"), int.class, String.class)
                        .newInstance(old.loadClass("org.apache.kafka.common.Uuid").getMethod("randomUuid").invoke(null), 0, "t");
                    manager.getClass().getMethod("onPartitionLeadershipChanges", Set.class, Set.class)
                        .invoke(manager, Set.of(orders), Set.of());
                    var isReady = manager.getClass().getMethod("isReady", partition);
                    Wait.until("ready", () -> (boolean) isReady.invoke(manager, orders));
                }
                manager.getClass().getMethod("close").invoke(manager);
            }
            assertEquals(old, old.loadClass("rlmm.daemon.kafka.Errors").getClassLoader());
        }
    }
}
