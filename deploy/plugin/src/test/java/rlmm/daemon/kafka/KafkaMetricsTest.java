package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.util.Map;
import java.util.Set;

import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.Metrics;
import org.junit.jupiter.api.Test;

/** Both managers' figures among the broker's metrics, as it asks for them. */
final class KafkaMetricsTest {
    private static KafkaMetric find(Metrics metrics, String manager, String name, String method) {
        return metrics.metrics().entrySet().stream()
            .filter(each -> each.getKey().name().equals(name) && each.getKey().group().equals("plugins")
                && each.getKey().tags().containsValue(manager)
                && (method == null || method.equals(each.getKey().tags().get("method"))))
            .map(Map.Entry::getValue).findFirst().orElse(null);
    }

    private static double value(Metrics metrics, String manager, String name, String method) {
        KafkaMetric found = find(metrics, manager, name, method);
        return found == null ? -1 : ((Number) found.metricValue()).doubleValue();
    }

    @Test
    void theBrokersReportersSeeWhatTheManagersDoUntilTheyAreClosed() throws Exception {
        try (RudeDaemon daemon = new RudeDaemon(); Metrics metrics = new Metrics()) {
            RlmmDaemonMetadataManager metadata = new RlmmDaemonMetadataManager();
            metadata.configure(daemon.configs(Map.of()));
            RlmmDaemonStorageManager storage = new RlmmDaemonStorageManager();
            storage.configure(daemon.configs(Map.of()));
            String manager = RlmmDaemonMetadataManager.class.getSimpleName();
            try (Plugin<?> first = Plugin.wrapInstance(metadata, metrics, "metadata");
                 Plugin<?> second = Plugin.wrapInstance(storage, metrics, "storage")) {
                assertTrue(first.get() == metadata && second.get() == storage);
                metadata.onPartitionLeadershipChanges(Set.of(ORDERS), Set.of());
                Wait.until("ready", () -> metadata.isReady(ORDERS));
                Wait.until("shown", () -> value(metrics, manager, "connected", null) == 1);
                Wait.until("counted", () -> value(metrics, manager, "calls-total", "is_ready") > 0);
                assertEquals(-1, value(metrics, manager, "calls-total", "list_remote_log_segments"));
                daemon.answer("list_remote_log_segments", id -> RudeDaemon.error(id, 300));
                try {
                    metadata.listRemoteLogSegments(ORDERS);
                } catch (org.apache.kafka.server.log.remote.storage.RemoteStorageException expected) {
                    assertEquals(1, value(metrics, manager, "calls-failed-total", "list_remote_log_segments"));
                }
                assertEquals(1, value(metrics, manager, "calls-failed-total", "list_remote_log_segments"));
                String other = RlmmDaemonStorageManager.class.getSimpleName();
                Wait.until("the other as well", () -> value(metrics, other, "connected", null) == 1);
                assertEquals(0, value(metrics, other, "streams-open", null));
            }
            assertFalse(metrics.metrics().keySet().stream().anyMatch(name -> name.group().equals("plugins")));
        }
    }
}
