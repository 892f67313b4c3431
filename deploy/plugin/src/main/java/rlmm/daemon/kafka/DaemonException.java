package rlmm.daemon.kafka;

import java.util.Map;

/**
 * Why a call to the daemon came to nothing: the daemon's own error, or what happened on the way to it.
 *
 * <p>Never leaves the package: {@link Errors} turns it into what the broker expects. It has no stack trace, because
 * thousands of these a second are normal while the daemon is away.
 */
final class DaemonException extends Exception {
    private static final long serialVersionUID = 1L;

    /** Codes of the daemon's error table that are treated on their own here; the hundreds tell the rest. */
    static final int INTERNAL = 0;
    static final int INVALID_ARGUMENT = 100;
    static final int SEGMENT_NOT_FOUND = 102;
    static final int NOT_ASSIGNED = 103;
    static final int UNAUTHORIZED = 105;
    static final int INDEX_NOT_FOUND = 111;
    static final int NOT_READY = 200;
    static final int TIMED_OUT = 201;
    static final int OVERLOADED = 202;
    static final int DRAINING = 205;
    static final int OUTCOME_UNKNOWN = 206;

    /** Whether the daemon said it, or this side noticed it. */
    enum Origin { DAEMON, DISCONNECTED, LOCAL, INTERRUPTED }

    private final Origin origin;
    private final int code;
    private final transient Map<String, Object> fields;

    private DaemonException(Origin origin, int code, String message, Map<String, Object> fields) {
        super(message, null, false, false);
        this.origin = origin;
        this.code = code;
        this.fields = fields;
    }

    static DaemonException answered(int code, String name, String message, Map<String, Object> fields) {
        return new DaemonException(Origin.DAEMON, code, name + ": " + message, fields);
    }

    /** Nobody answers on the socket; the request did not leave, or its connection was lost. */
    static DaemonException disconnected(String message) {
        return new DaemonException(Origin.DISCONNECTED, NOT_READY, message, Map.of());
    }

    /** The request was sent, so it may have taken effect. */
    static DaemonException silent(String method, long timeoutMs) {
        return new DaemonException(
            Origin.LOCAL, TIMED_OUT, "the daemon did not answer " + method + " within " + timeoutMs + " ms", Map.of());
    }

    static DaemonException overloaded(String message) {
        return new DaemonException(Origin.LOCAL, OVERLOADED, message, Map.of());
    }

    static DaemonException notReady(String message) {
        return new DaemonException(Origin.LOCAL, NOT_READY, message, Map.of());
    }

    /** The thread's interrupt flag is set again by whoever makes this. */
    static DaemonException interrupted(String method) {
        return new DaemonException(Origin.INTERRUPTED, TIMED_OUT, "interrupted while waiting for " + method, Map.of());
    }

    /** The daemon sent something that is no answer of its protocol. */
    static DaemonException garbled(String message) {
        return new DaemonException(Origin.DISCONNECTED, NOT_READY, "not the daemon's protocol: " + message, Map.of());
    }

    Origin origin() {
        return origin;
    }

    int code() {
        return code;
    }

    /** The same request may succeed later; a daemon that met a bug restarts, so that counts too. */
    boolean isRetriable() {
        return code / 100 == 2 || code == INTERNAL;
    }

    /** Nobody answered in time. */
    boolean isSilence() {
        return origin == Origin.LOCAL && code == TIMED_OUT;
    }

    /** A read that met this is worth holding for a moment. */
    boolean mayPassSoon() {
        return code == NOT_READY || code == OVERLOADED || code == DRAINING || code == INTERNAL;
    }

    /** Only the daemon can know that no object was touched; silence is not enough. */
    boolean saysNoWriteBegun() {
        return origin == Origin.DAEMON && Boolean.FALSE.equals(fields.get("write_begun"));
    }
}
