package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * One request that waits for its answer. Its future always completes: with the pages of the answer (one unless it is a
 * listing), or with a {@link DaemonException}.
 */
final class Call {
    /** Answers that take longer by nature say nothing about the daemon's health. */
    private static final long PROMPT_MS = 10_000;

    final String method;
    final Wire.Params params;
    final long timeoutMs;
    /** Of a write it begins anew when that is sent; touched by the connection alone, under its lock. */
    volatile long deadlineNanos;
    final boolean isWrite;
    final CompletableFuture<List<Wire.Answer>> future = new CompletableFuture<>();
    private final boolean listing;
    private final List<Wire.Answer> pages = new ArrayList<>(1);
    /** 0 until it is sent; touched by the connection alone, under its lock. */
    int id;

    Call(String method, boolean listing, Wire.Params params, long timeoutMs) {
        this(method, listing, false, params, timeoutMs);
    }

    private Call(String method, boolean listing, boolean isWrite, Wire.Params params, long timeoutMs) {
        this.method = method;
        this.listing = listing;
        this.isWrite = isWrite;
        this.params = params;
        this.timeoutMs = timeoutMs;
        this.deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    }

    /** One that stands in line with thousands of its kind: its deadline is that of its answer, not of its turn. */
    static Call write(String method, Wire.Params params, long timeoutMs) {
        return new Call(method, false, true, params, timeoutMs);
    }

    boolean isPrompt() {
        return timeoutMs <= PROMPT_MS;
    }

    /** Takes one answer in; true when no other follows. */
    boolean answered(Wire.Answer answer) throws IOException {
        if (answer.error() != null) {
            future.completeExceptionally(answer.error());
            return true;
        }
        pages.add(answer);
        if (listing && answer.hasMore()) {
            return false;
        }
        future.complete(pages);
        return true;
    }
}
