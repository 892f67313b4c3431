package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

import org.msgpack.core.MessagePacker;
import org.msgpack.value.MapValue;
import org.msgpack.value.Value;
import org.msgpack.value.ValueFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether this broker may use its daemon at all: an embedded log is not replicated, so with a second broker the first
 * leadership change would lose metadata.
 *
 * <p>Closed until the answer is known, then checked again every minute while the log is embedded. A verdict outlives a
 * lost connection, so that a restarted daemon is used at once.
 */
final class SingleBrokerCheck implements AutoCloseable {
    static final String EMBEDDED = "embedded";
    private static final String UNKNOWN = "it is not known yet whether the daemon's log is fit for this cluster";
    /** The first pause before asking again; it doubles. */
    private static final long RETRY_MS = 250;
    private static final long RETRY_MAX_MS = 5_000;
    /** In 8 s or more; before that it may be this very broker, which does not serve yet. */
    private static final int FAILURES_TOLD = 6;
    static final long REPEAT_MS = 60_000;
    private static final long STATUS_TIMEOUT_MS = 5_000;
    private static final Logger LOG = LoggerFactory.getLogger(SingleBrokerCheck.class);

    /** How many brokers the cluster has, asked of the cluster. */
    @FunctionalInterface
    interface BrokerCount {
        int ask() throws Exception;
    }

    private final Caller caller;
    private final BrokerCount count;
    private final String cannotAsk;
    private final boolean enabled;
    private final long repeatMs;
    private final ScheduledExecutorService thread;
    private volatile String obstacle;
    private ScheduledFuture<?> due;
    /** How many daemons there were to look at; whoever looks at an older one leaves the next check to the newest. */
    private int daemons;
    /** How often in a row the cluster could not be asked; the check thread's own. */
    private int failures;

    /** {@code cannotAsk} is null, or why the cluster can't be asked and what to do about it. */
    SingleBrokerCheck(Caller caller, BrokerCount count, String cannotAsk, boolean enabled, long repeatMs) {
        this.caller = caller;
        this.count = count;
        this.cannotAsk = cannotAsk;
        this.enabled = enabled;
        this.repeatMs = repeatMs;
        this.obstacle = enabled ? UNKNOWN : null;
        this.thread = Executors.newSingleThreadScheduledExecutor(new DaemonThreads("rlmm-daemon-check"));
    }

    /**
     * The daemon is there, perhaps another one than before. It is asked from here, in one go with what was announced;
     * a thread is needed only where the answer is not enough.
     */
    synchronized void begin() {
        if (!enabled) {
            return;
        }
        int daemon = ++daemons;
        try {
            caller.send("status", SingleBrokerCheck::packNothing, STATUS_TIMEOUT_MS)
                .whenComplete((status, error) -> begun(daemon, status));
        } catch (DaemonException away) {
            schedule(daemon, RETRY_MS);
        }
    }

    /** On the connection's thread; null is no answer. */
    private void begun(int daemon, List<Value> status) {
        boolean fit = false;
        try {
            fit = status != null && !isEmbedded(status);
        } catch (RuntimeException garbled) {
            LOG.debug("asking again about the daemon's log", garbled);
        }
        if (fit) {
            obstacle = null;
        } else {
            schedule(daemon, 0);
        }
    }

    private static void packNothing(MessagePacker packer) throws IOException {
        packer.packArrayHeader(0);
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
            if (!isEmbedded(caller.call("status", false, SingleBrokerCheck::packNothing, STATUS_TIMEOUT_MS))) {
                obstacle = null;
                return;
            }
            if (cannotAsk != null) {
                refuse(cannotAsk);
                return;
            }
            judge(count.ask());
            failures = 0;
            schedule(daemon, repeatMs);
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        } catch (DaemonException away) { // the next connection begins anew, unless it was but slow
            LOG.debug("asking again about the daemon's log", away);
            schedule(daemon, RETRY_MS);
        } catch (Exception | LinkageError refusal) {
            again(daemon, refusal);
        }
    }

    /** Where the cluster never answers, somebody has to be told; a verdict stays until there is another. */
    private void again(int daemon, Throwable refusal) {
        LOG.debug("asking the cluster again", refusal);
        failures++;
        String known = obstacle;
        if (failures >= FAILURES_TOLD && known != null && known.startsWith(UNKNOWN)) {
            String reason = UNKNOWN + ": it is an embedded one, and how many brokers there are can't be asked ("
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
    private synchronized void schedule(int daemon, long delayMs) {
        if (thread.isShutdown() || daemon != daemons) {
            return;
        }
        if (due != null) {
            due.cancel(false);
        }
        due = thread.schedule(() -> check(daemon), delayMs, TimeUnit.MILLISECONDS);
    }

    private void judge(int brokers) {
        if (brokers > 1) {
            refuse("the daemon keeps an embedded log, which is not replicated, and this cluster has " + brokers
                + " brokers. Set [event_log] kind = \"kafka\" in the daemon's configuration");
        } else {
            obstacle = null;
        }
    }

    private void refuse(String reason) {
        if (!reason.equals(obstacle)) {
            LOG.error("Remote log metadata is refused: {}", reason);
        }
        obstacle = reason;
    }

    private static boolean isEmbedded(List<Value> status) {
        MapValue answer = status.get(0).asMapValue();
        Value log = answer.map().get(ValueFactory.newString("log"));
        Map<Value, Value> facts = log == null || !log.isMapValue() ? Map.of() : log.asMapValue().map();
        return EMBEDDED.equals(String.valueOf(facts.get(ValueFactory.newString("kind"))));
    }

    @Override
    public synchronized void close() {
        thread.shutdownNow();
    }
}
