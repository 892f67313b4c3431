package rlmm.daemon.kafka;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * What was asked and not answered: calls that wait for their turn, and those in flight. Used under its owner's lock.
 *
 * <p>The broker marks all segments of a partition at once, in tens of thousands. Such writes wait in a line of their
 * own, behind which nobody who looks something up has to stand, and leave a quarter of the places to others. Their
 * deadline begins when they are sent, and in the line they wait for as long as writes are answered.
 */
final class CallQueue {
    /** In the line, however well it moves. */
    static final long WAITING_MS_MAX = 120_000;

    private final int inFlightMax;
    private final int writesInFlightMax;
    private final int waitingMax;
    private final Deque<Call> waiting = new ArrayDeque<>();
    private final Deque<Call> writes = new ArrayDeque<>();
    private final Map<Integer, Call> inFlight = new HashMap<>();
    private int writesInFlight;
    private long writeAnsweredNanos;

    CallQueue(int inFlightMax, int waitingMax) {
        this.inFlightMax = inFlightMax;
        this.writesInFlightMax = Math.max(1, inFlightMax - inFlightMax / 4);
        this.waitingMax = waitingMax;
        this.writeAnsweredNanos = System.nanoTime();
    }

    /**
     * All of them or none.
     *
     * @throws DaemonException too much waits already
     */
    void add(List<Call> calls) throws DaemonException {
        if (waiting.size() + writes.size() + calls.size() > waitingMax) {
            throw DaemonException.overloaded(waitingMax + " requests wait for the daemon");
        }
        for (Call call : calls) { // addAll makes a lambda
            (call.isWrite ? writes : waiting).add(call);
        }
    }

    /** In front of all others. */
    void addFirst(Call call) {
        waiting.addFirst(call);
    }

    /** Takes what is to be sent now, as this id; null when nothing is. */
    Call send(int id, long now) {
        Call call = inFlight.size() < inFlightMax ? waiting.poll() : null;
        if (call == null && inFlight.size() < inFlightMax && writesInFlight < writesInFlightMax) {
            call = writes.poll();
        }
        if (call == null) {
            return null;
        }
        call.id = id;
        if (call.isWrite) {
            call.deadlineNanos = now + TimeUnit.MILLISECONDS.toNanos(call.timeoutMs);
            writesInFlight++;
        }
        inFlight.put(id, call);
        return call;
    }

    /** Null when nobody waits for such an answer any more. */
    Call asked(int id) {
        return inFlight.get(id);
    }

    /** Nothing more is to come for this one. */
    void answered(Call call, boolean failedForNow, long now) {
        if (call.isWrite && !failedForNow) {
            writeAnsweredNanos = now;
        }
        forget(call);
    }

    /** Nobody waits for it any more; whether the daemon has to be told. */
    boolean forget(Call call) {
        if (call.id == 0) {
            (call.isWrite ? writes : waiting).remove(call);
            return false;
        }
        boolean asked = inFlight.remove(call.id, call);
        if (asked) {
            left(call);
        }
        return asked;
    }

    private void left(Call call) {
        if (call.isWrite) {
            writesInFlight--;
        }
    }

    /** Takes out whatever waited for too long. */
    List<Call> late(long now) {
        List<Call> late = new ArrayList<>();
        for (Iterator<Call> each = inFlight.values().iterator(); each.hasNext();) {
            Call call = each.next();
            if (now - call.deadlineNanos >= 0) {
                each.remove();
                left(call);
                late.add(call);
            }
        }
        for (Iterator<Call> each = waiting.iterator(); each.hasNext();) {
            Call call = each.next();
            if (now - call.deadlineNanos >= 0) {
                each.remove();
                late.add(call);
            }
        }
        while (!writes.isEmpty() && isLate(writes.peek(), now)) { // the first has waited longest
            late.add(writes.poll());
        }
        return late;
    }

    /** Of a write that was not sent: whether the line has not moved for its deadline, or far too slowly. */
    private boolean isLate(Call write, long now) {
        long timeoutNanos = TimeUnit.MILLISECONDS.toNanos(write.timeoutMs);
        boolean stands = now - write.deadlineNanos >= 0 && now - writeAnsweredNanos >= timeoutNanos;
        long longest = Math.max(TimeUnit.MILLISECONDS.toNanos(WAITING_MS_MAX), timeoutNanos);
        return stands || now - (write.deadlineNanos - timeoutNanos) >= longest;
    }

    /** Takes out all. */
    List<Call> drain() {
        List<Call> all = new ArrayList<>(inFlight.values());
        all.addAll(waiting);
        all.addAll(writes);
        inFlight.clear();
        waiting.clear();
        writes.clear();
        writesInFlight = 0;
        return all;
    }

    boolean isEmpty() {
        return inFlight.isEmpty() && waiting.isEmpty() && writes.isEmpty();
    }

    /** Whether something is in flight that may take long. */
    boolean awaitsSlow() {
        for (Call call : inFlight.values()) {
            if (!call.isPrompt()) {
                return true;
            }
        }
        return false;
    }
}
