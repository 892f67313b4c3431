package rlmm.daemon.kafka;

import java.util.LinkedHashMap;
import java.util.function.Supplier;

import org.apache.kafka.common.metrics.Gauge;
import org.apache.kafka.common.metrics.PluginMetrics;

/**
 * The same figures as in JMX under {@code rlmm.daemon}, among the broker's own metrics (KIP-877): group {@code plugins},
 * so that its reporters have them too. The broker tells them apart by its own tags, and removes them with the plugin.
 */
final class KafkaMetrics {
    private final PluginMetrics metrics;

    KafkaMetrics(PluginMetrics metrics) {
        this.metrics = metrics;
    }

    void show(ConnectionStatsMXBean connection) {
        add("connected", "Whether the daemon answers now: 1 or 0", null, () -> connection.isConnected() ? 1 : 0);
        add("connects-total", "How often the daemon was connected to", null, connection::getConnects);
        add("deletes-refused-total", "Refused at once in a topic's deletion", null, connection::getDeletesRefused);
        add("lookups-reused-total", "Look-ups without a question to the daemon", null, connection::getLookupsReused);
        add("streams-open", "Streams that are open now", null, connection::getOpenStreams);
        add("streams-parked", "Streams that wait for whoever reads on", null, connection::getStreamsParked);
        add("streams-resumed-total", "Streams that went on where one stopped", null, connection::getStreamsResumed);
        add("streams-closed-early-total", "Streams closed before their end", null, connection::getStreamsClosedEarly);
        add("streams-broken-total", "Streams that broke before their end", null, connection::getStreamsBroken);
        add("files-opened-total", "Segments read from the daemon's own file", null, connection::getFilesOpened);
    }

    void show(String method, CallStatsMXBean calls) {
        add("calls-total", "Calls that ended, however", method, calls::getCount);
        add("calls-failed-total", "Calls that failed", method, calls::getFailures);
        add("call-mean-ms", "Mean over all calls", method, calls::getMeanMs);
        add("call-p99-ms", "99 in 100 calls took at most so long", method, calls::getP99Ms);
        add("call-max-ms", "The slowest call", method, calls::getMaxMs);
    }

    private void add(String name, String description, String method, Supplier<Number> value) {
        LinkedHashMap<String, String> tags = new LinkedHashMap<>();
        if (method != null) {
            tags.put("method", method);
        }
        metrics.addMetric(metrics.metricName(name, description, tags), (Gauge<Number>) (config, now) -> value.get());
    }
}
