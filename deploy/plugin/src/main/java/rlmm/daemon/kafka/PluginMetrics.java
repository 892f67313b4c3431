package rlmm.daemon.kafka;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.ObjectName;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What one manager did, under {@code rlmm.daemon} in JMX and, where the broker wants it there, among its own metrics.
 * Trouble with either is logged and never in the way.
 */
final class PluginMetrics implements ConnectionStatsMXBean, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(PluginMetrics.class);

    private final String scope;
    private final Map<String, CallStats> calls = new ConcurrentHashMap<>();
    private final List<ObjectName> registered = new ArrayList<>();
    private final AtomicLong connects = new AtomicLong();
    final AtomicLong openStreams = new AtomicLong();
    final AtomicLong streamsClosedEarly = new AtomicLong();
    final AtomicLong streamsBroken = new AtomicLong();
    final AtomicLong streamsResumed = new AtomicLong();
    final AtomicLong filesOpened = new AtomicLong();
    final AtomicLong streamsParked = new AtomicLong();
    final AtomicLong deletesRefused = new AtomicLong();
    final AtomicLong lookupsReused = new AtomicLong();
    private volatile boolean connected;
    private boolean published;
    private KafkaMetrics brokersMetrics;
    private boolean closed;

    PluginMetrics(String part, int brokerId) {
        this.scope = ",part=" + part + ",broker=" + brokerId;
    }

    /**
     * In JMX from now on, with whatever is counted later. JMX takes milliseconds over the first bean of a kind, so not
     * while a broker waits.
     */
    synchronized void publish() {
        published = !closed;
        if (published) {
            register("rlmm.daemon:type=connection" + scope, this);
            for (Map.Entry<String, CallStats> each : calls.entrySet()) {
                registerCalls(each.getKey(), each.getValue());
            }
            showAll();
        }
    }

    /** Among the broker's metrics as well, once published. */
    synchronized void publishTo(KafkaMetrics brokers) {
        brokersMetrics = brokers;
        if (published) {
            showAll();
        }
    }

    private void showAll() {
        KafkaMetrics brokers = brokersMetrics;
        if (brokers == null) {
            return;
        }
        try {
            brokers.show(this);
            for (Map.Entry<String, CallStats> each : calls.entrySet()) {
                brokers.show(each.getKey(), each.getValue());
            }
        } catch (RuntimeException refused) { // two of one name, or it is closed
            LOG.warn("not all of the plugin's metrics are among the broker's", refused);
        }
    }

    void called(String method, long tookNanos, boolean succeeded) {
        CallStats stats = calls.get(method);
        (stats == null ? newStats(method) : stats).add(tookNanos, succeeded);
    }

    void connected(boolean now) {
        if (now) {
            connects.incrementAndGet();
        }
        connected = now;
    }

    private synchronized CallStats newStats(String method) {
        CallStats stats = new CallStats();
        CallStats others = calls.putIfAbsent(method, stats);
        if (others == null && published) {
            registerCalls(method, stats);
            showCalls(method, stats);
        }
        return others == null ? stats : others;
    }

    private void registerCalls(String method, CallStats stats) {
        register("rlmm.daemon:type=calls" + scope + ",method=" + method, stats);
    }

    private void showCalls(String method, CallStats stats) {
        KafkaMetrics brokers = brokersMetrics;
        if (brokers == null) {
            return;
        }
        try {
            brokers.show(method, stats);
        } catch (RuntimeException refused) { // as above
            LOG.warn("no metric of {} among the broker's", method, refused);
        }
    }

    private void register(String name, Object bean) {
        try {
            ObjectName key = new ObjectName(name);
            ManagementFactory.getPlatformMBeanServer().registerMBean(bean, key);
            registered.add(key);
        } catch (InstanceAlreadyExistsException another) { // of the same broker id: not to be had from one broker
            LOG.debug("{} is taken", name);
        } catch (JMException refused) {
            LOG.warn("no JMX metric {}", name, refused);
        }
    }

    @Override
    public synchronized void close() {
        closed = true;
        published = false;
        brokersMetrics = null;
        for (ObjectName key : registered) {
            try {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(key);
            } catch (JMException gone) {
                LOG.debug("unregistering {}", key, gone);
            }
        }
        registered.clear();
    }

    @Override
    public boolean isConnected() {
        return connected;
    }

    @Override
    public long getConnects() {
        return connects.get();
    }

    @Override
    public long getOpenStreams() {
        return openStreams.get();
    }

    @Override
    public long getFilesOpened() {
        return filesOpened.get();
    }

    @Override
    public long getStreamsParked() {
        return streamsParked.get();
    }

    @Override
    public long getStreamsResumed() {
        return streamsResumed.get();
    }

    @Override
    public long getStreamsClosedEarly() {
        return streamsClosedEarly.get();
    }

    @Override
    public long getStreamsBroken() {
        return streamsBroken.get();
    }

    @Override
    public long getLookupsReused() {
        return lookupsReused.get();
    }

    @Override
    public long getDeletesRefused() {
        return deletesRefused.get();
    }
}
