package rlmm.daemon.kafka;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.msgpack.value.Value;

/** Makes calls for the broker's threads: under a deadline, interruptible, held for a moment where that may help. */
final class Caller {
    /** The connection ends calls at their deadline; this is for the case that its thread is stuck. */
    private static final long BEYOND_DEADLINE_MS = 1_000;
    /** How much earlier the daemon's own deadline is, so that it can say how a request ended. */
    private static final long SHORTER_MS = 500;
    /** Before a daemon that is not ready is asked again; it holds the question itself, too. */
    static final long AGAIN_MS = 50;

    private final Connection connection;
    private final PluginMetrics metrics;
    private final long holdMs;

    Caller(Connection connection, PluginMetrics metrics, long holdMs) {
        this.connection = connection;
        this.metrics = metrics;
        this.holdMs = holdMs;
    }

    /** What the daemon is told of a deadline. */
    static long tellMs(long timeoutMs) {
        return Math.max(timeoutMs / 2, timeoutMs - SHORTER_MS);
    }

    /** One call, waited for; the pages of its answer. */
    List<Value> call(String method, boolean listing, Wire.Params params, long timeoutMs) throws DaemonException {
        List<Value> pages = new ArrayList<>(1);
        for (Wire.Answer answer : answers(method, listing, params, timeoutMs)) {
            pages.add(answer.result());
        }
        return pages;
    }

    /** As {@link #call}, of a question. */
    boolean isYes(String method, Wire.Params params, long timeoutMs) throws DaemonException {
        return answers(method, false, params, timeoutMs).get(0).isYes();
    }

    private List<Wire.Answer> answers(String method, boolean listing, Wire.Params params, long timeoutMs)
            throws DaemonException {
        long begun = System.nanoTime();
        boolean done = false;
        try {
            Call call = new Call(method, listing, params, timeoutMs);
            connection.submit(call);
            List<Wire.Answer> pages = await(call);
            done = true;
            return pages;
        } finally {
            metrics.called(method, System.nanoTime() - begun, done);
        }
    }

    /**
     * A look-up: while the daemon is away or not ready it is held, and then asked once more. The daemon holds such a
     * request itself, so one that was held there is not held again.
     */
    List<Value> read(String method, boolean listing, Wire.Params params, long timeoutMs) throws DaemonException {
        long begun = System.nanoTime();
        try {
            return call(method, listing, params, timeoutMs);
        } catch (DaemonException error) {
            long leftMs = holdMs - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
            if (!error.mayPassSoon() || leftMs <= 0) {
                throw error;
            }
            hold(method, leftMs, error.origin() == DaemonException.Origin.DISCONNECTED);
            return call(method, listing, params, timeoutMs);
        }
    }

    /**
     * A call of a topic's deletion, which the broker makes once: asked again while the daemon is away or not ready, for
     * as long as may be waited. Whatever it asks for may be asked for twice.
     */
    List<Value> insist(String method, boolean listing, Wire.Params params, long timeoutMs, Allowance allowance)
            throws DaemonException {
        boolean waits = false;
        try {
            while (true) {
                try {
                    return call(method, listing, params, timeoutMs);
                } catch (DaemonException error) {
                    long leftMs = allowance.leftMs();
                    if (!error.mayPassSoon() || leftMs <= 0 || connection.isClosed()) {
                        throw error;
                    }
                    if (!waits) {
                        waits = true;
                        allowance.begin();
                    }
                    boolean away = error.origin() == DaemonException.Origin.DISCONNECTED;
                    hold(method, away ? leftMs : Math.min(leftMs, AGAIN_MS), away);
                }
            }
        } finally {
            if (waits) {
                allowance.end();
            }
        }
    }

    /** Waits, at most until the daemon is there again when it was not. */
    void hold(String method, long timeoutMs, boolean untilOpen) throws DaemonException {
        try {
            if (untilOpen) {
                connection.awaitOpen(timeoutMs);
            } else {
                TimeUnit.MILLISECONDS.sleep(timeoutMs);
            }
        } catch (InterruptedException hurried) {
            Thread.currentThread().interrupt();
            throw DaemonException.interrupted(method);
        }
    }

    /**
     * A write that nobody waits for here. The future fails with a {@link DaemonException}.
     *
     * @throws DaemonException nothing was sent
     */
    CompletableFuture<List<Wire.Answer>> send(String method, Wire.Params params, long timeoutMs) throws DaemonException {
        long begun = System.nanoTime();
        Call call = Call.write(method, params, timeoutMs);
        boolean sent = false;
        try {
            connection.submit(call);
            sent = true;
        } finally {
            if (!sent) {
                metrics.called(method, System.nanoTime() - begun, false);
            }
        }
        return call.future.whenComplete((pages, error) ->
            metrics.called(method, System.nanoTime() - begun, error == null));
    }

    private List<Wire.Answer> await(Call call) throws DaemonException {
        try {
            return call.future.get(call.timeoutMs + BEYOND_DEADLINE_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException hurried) {
            DaemonException interrupted = DaemonException.interrupted(call.method);
            connection.cancel(call, interrupted);
            Thread.currentThread().interrupt();
            throw interrupted;
        } catch (TimeoutException stuck) {
            DaemonException silent = DaemonException.silent(call.method, call.timeoutMs);
            connection.cancel(call, silent);
            throw silent;
        } catch (ExecutionException failed) {
            throw daemonException(failed.getCause());
        }
    }

    /** What a call's future failed with. */
    static DaemonException daemonException(Throwable cause) {
        Throwable plain = cause instanceof CompletionException ? cause.getCause() : cause;
        return plain instanceof DaemonException known ? known : DaemonException.garbled(String.valueOf(plain));
    }
}
