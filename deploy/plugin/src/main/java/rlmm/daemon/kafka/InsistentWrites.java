package rlmm.daemon.kafka;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/**
 * Writes of a topic's deletion. The broker publishes them once, waits for them and gives the partition up with the first
 * that fails, so they are said again while the daemon is away or not ready, for as long as may be waited. What is said
 * twice is taken once.
 */
final class InsistentWrites implements AutoCloseable {
    private static final long AGAIN_MS_MAX = 500;

    private final Caller caller;
    private final Allowance allowance;
    private final ScheduledThreadPoolExecutor thread;
    private volatile boolean closed;

    InsistentWrites(Caller caller, Allowance allowance, String threadName) {
        this.caller = caller;
        this.allowance = allowance;
        this.thread = new ScheduledThreadPoolExecutor(1, new DaemonThreads(threadName));
    }

    /** The future fails with a {@link DaemonException}. */
    CompletableFuture<List<Wire.Answer>> send(String method, Wire.Params params, long timeoutMs) {
        Attempts attempts = new Attempts(method, params, timeoutMs);
        attempts.run();
        return attempts.outcome;
    }

    private static boolean mayBeSaidAgain(DaemonException error) {
        return error.mayPassSoon() || error.code() == DaemonException.OUTCOME_UNKNOWN;
    }

    private final class Attempts implements Runnable, BiConsumer<List<Wire.Answer>, Throwable> {
        private final String method;
        private final Wire.Params params;
        private final long timeoutMs;
        private final CompletableFuture<List<Wire.Answer>> outcome = new CompletableFuture<>();
        private long pauseMs = Caller.AGAIN_MS;
        private boolean waits;

        Attempts(String method, Wire.Params params, long timeoutMs) {
            this.method = method;
            this.params = params;
            this.timeoutMs = timeoutMs;
        }

        @Override
        public void run() {
            try {
                caller.send(method, params, timeoutMs).whenComplete(this);
            } catch (DaemonException unsent) {
                accept(null, unsent);
            }
        }

        @Override
        public void accept(List<Wire.Answer> pages, Throwable failure) {
            if (failure == null) {
                end();
                outcome.complete(pages);
                return;
            }
            DaemonException error = Caller.daemonException(failure);
            if (closed || !mayBeSaidAgain(error) || allowance.leftMs() <= 0 || !again()) {
                end();
                outcome.completeExceptionally(error);
            }
        }

        private boolean again() {
            if (!waits) {
                waits = true;
                allowance.begin();
            }
            try {
                thread.schedule(this, pauseMs, TimeUnit.MILLISECONDS);
                pauseMs = Math.min(2 * pauseMs, AGAIN_MS_MAX);
                return true;
            } catch (RejectedExecutionException closing) {
                return false;
            }
        }

        private void end() {
            if (waits) {
                waits = false;
                allowance.end();
            }
        }
    }

    /** What waits is said once more, and ends as that does. */
    @Override
    public void close() {
        closed = true;
        thread.shutdown();
    }
}
