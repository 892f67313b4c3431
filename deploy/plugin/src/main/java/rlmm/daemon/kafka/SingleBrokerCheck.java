package rlmm.daemon.kafka;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether this broker may use its daemon at all: a log that is its daemon's alone is not for a cluster of several, where
 * the first leadership change would lose metadata. It is said to be embedded, whatever keeps it.
 *
 * <p>Closed until the daemon has said what log it keeps and, where that is embedded, the cluster how many brokers it
 * has; the cluster is then asked again every minute. A verdict outlives a lost connection, so that a restarted daemon
 * is used at once.
 */
final class SingleBrokerCheck implements AutoCloseable {
    static final String EMBEDDED = "embedded";
    private static final String UNKNOWN = "it is not known yet whether the daemon's log is fit for this cluster";
    private static final String UNSAID = "the daemon is older than this plugin and does not say what log it keeps: update it";
    /** The first pause before asking again; it doubles. */
    private static final long RETRY_MS = 250;
    private static final long RETRY_MAX_MS = 5_000;
    /** In 8 s or more; before that it may be this very broker, which does not serve yet. */
    private static final int FAILURES_TOLD = 6;
    static final long REPEAT_MS = 60_000;
    private static final Logger LOG = LoggerFactory.getLogger(SingleBrokerCheck.class);

    /** How many brokers the cluster has, asked of the cluster. */
    @FunctionalInterface
    interface BrokerCount {
        int ask() throws Exception;
    }

    private final BrokerCount count;
    private final String cannotAsk;
    private final boolean enabled;
    private final long repeatMs;
    private volatile String obstacle;
    /** Null until the cluster has to be asked. */
    private ScheduledExecutorService thread;
    /** Null where the cluster does not have to be asked. */
    private ScheduledFuture<?> due;
    private boolean closed;
    /** How many daemons there were to look at; what is found out about an older one means nothing. */
    private int daemons;
    /** How often in a row the cluster could not be asked. */
    private int failures;

    /** {@code cannotAsk} is null, or why the cluster can't be asked and what to do about it. */
    SingleBrokerCheck(BrokerCount count, String cannotAsk, boolean enabled, long repeatMs) {
        this.count = count;
        this.cannotAsk = cannotAsk;
        this.enabled = enabled;
        this.repeatMs = repeatMs;
        this.obstacle = enabled ? UNKNOWN : null;
    }

    /** The daemon is there, perhaps another one than before, and has said what log it keeps; or not: null. */
    synchronized void begin(String eventLog) {
        if (!enabled) {
            return;
        }
        daemons++;
        cancel();
        if (eventLog == null) {
            refuse(UNSAID);
        } else if (!eventLog.equals(EMBEDDED)) {
            obstacle = null;
        } else if (cannotAsk != null) {
            refuse(cannotAsk);
        } else {
            schedule(daemons, 0);
        }
    }

    /** The cluster may answer now: it is asked at once, if it has to be asked. */
    synchronized void hurry() {
        if (due != null) {
            schedule(++daemons, 0);
        }
    }

    /** Throws while this broker may not use its daemon. */
    void require() throws DaemonException {
        String reason = obstacle;
        if (reason != null) {
            throw DaemonException.notReady(reason);
        }
    }

    private void check(int daemon) {
        try {
            judge(daemon, count.ask());
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        } catch (Exception | LinkageError refusal) {
            again(daemon, refusal);
        }
    }

    private synchronized void judge(int daemon, int brokers) {
        if (daemon != daemons) {
            return;
        }
        failures = 0;
        if (brokers > 1) {
            refuse("the daemon keeps a log for one broker (event_log.single_broker = true), and this cluster has "
                + brokers + " brokers. Set [event_log] kind = \"kafka\" in the daemon's configuration; of a quorum,"
                + " leave single_broker out and name [event_log.quorum.brokers]");
        } else {
            obstacle = null;
        }
        schedule(daemon, repeatMs);
    }

    /** Where the cluster never answers, somebody has to be told; a verdict stays until there is another. */
    private synchronized void again(int daemon, Throwable refusal) {
        LOG.debug("asking the cluster again", refusal);
        if (daemon != daemons) {
            return;
        }
        failures++;
        String known = obstacle;
        if (failures >= FAILURES_TOLD && known != null && known.startsWith(UNKNOWN)) {
            String reason = UNKNOWN + ": it is for one broker (event_log.single_broker), and how many there are can't be asked ("
                + plainly(refusal) + "). Where the listener of remote.log.metadata.manager.listener.name wants SASL or"
                + " TLS, repeat its settings as rlmm.config." + PluginConfig.CLIENT_PREFIX + "*; or vouch for the cluster"
                + " with rlmm.config." + PluginConfig.SINGLE_BROKER_CHECK + "=false";
            if (known.equals(UNKNOWN)) {
                LOG.warn("Remote log metadata is not used: {}", reason);
            }
            obstacle = reason;
        }
        schedule(daemon, Math.min(RETRY_MAX_MS, RETRY_MS << Math.min(failures - 1, 10)));
    }

    /** What a future's wrapper hides. */
    private static String plainly(Throwable error) {
        Throwable plain = error instanceof ExecutionException && error.getCause() != null ? error.getCause() : error;
        return plain.getClass().getSimpleName() + (plain.getMessage() == null ? "" : ": " + plain.getMessage());
    }

    /** One check is due at a time, however often the daemon came back. */
    private void schedule(int daemon, long delayMs) {
        if (closed) {
            return;
        }
        if (thread == null) {
            thread = Executors.newSingleThreadScheduledExecutor(new DaemonThreads("rlmm-daemon-check"));
        }
        cancel();
        due = thread.schedule(() -> check(daemon), delayMs, TimeUnit.MILLISECONDS);
    }

    private void cancel() {
        if (due != null) {
            due.cancel(false);
            due = null;
        }
    }

    private void refuse(String reason) {
        if (!reason.equals(obstacle)) {
            LOG.error("Remote log metadata is refused: {}", reason);
        }
        obstacle = reason;
    }

    @Override
    public synchronized void close() {
        closed = true;
        if (thread != null) {
            thread.shutdownNow();
        }
    }
}
