package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;
import org.junit.jupiter.api.Test;

/** What a JVM that has never run a manager loads until its partitions are ready, which is what a broker waits for. */
final class ColdStartTest {
    private static final int PARTITIONS = 3;
    private static final String READY = "all are ready";

    /** Of a JVM of its own: configures a manager for this socket, and ends once all partitions are ready. */
    public static void main(String[] args) throws Exception {
        Map<String, Object> configs = new HashMap<>();
        configs.put(PluginConfig.BROKER_ID, 9);
        configs.put(PluginConfig.CLUSTER_ID, "rude");
        configs.put(PluginConfig.SOCKET_PATH, args[0]);
        Set<TopicIdPartition> partitions = new LinkedHashSet<>();
        for (int number = 0; number < PARTITIONS; number++) {
            partitions.add(new TopicIdPartition(ORDERS.topicId(), number, ORDERS.topic()));
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager();
        manager.configure(configs);
        manager.onPartitionLeadershipChanges(partitions, Set.of());
        for (TopicIdPartition partition : partitions) {
            while (!manager.isReady(partition) && System.nanoTime() - deadline < 0) {
                Thread.sleep(1);
            }
        }
        if (System.nanoTime() - deadline < 0) {
            System.out.println(READY);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static List<String> said(RudeDaemon daemon) throws Exception {
        Process process = new ProcessBuilder(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xlog:class+load", "-cp",
            System.getProperty("java.class.path"), ColdStartTest.class.getName(), daemon.socket().toString())
            .redirectErrorStream(true).start();
        try (var output = process.getInputStream()) {
            return new String(output.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
        } finally {
            process.destroyForcibly();
        }
    }

    @Test
    void noLambdaIsSpunAndNoneOfMsgpacksValuesIsLoadedUntilAllAreReady() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon()) {
            List<String> said = said(daemon);
            assertTrue(said.contains(READY), () -> String.join("\n", said.subList(Math.max(0, said.size() - 20), said.size())));
            assertTrue(said.stream().anyMatch(line -> line.contains("] " + Connection.class.getName() + " ")), "it tells them");
            assertEquals(List.of(), said.stream().filter(line -> line.contains("] rlmm.daemon.kafka.")
                && line.contains("$$Lambda") || line.contains("] org.msgpack.value.impl.")).toList());
        }
    }
}
