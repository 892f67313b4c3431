package rlmm.daemon.kafka;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

import org.apache.kafka.common.errors.ReplicaNotAvailableException;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * The one table from the daemon's errors to the classes that {@code RemoteLogManager} tells apart.
 *
 * <p>An unavailable daemon must never look like "nothing there": an empty answer or a wrong class makes the broker
 * reset consumers or skip a clean-up. ReplicaNotAvailableException is unchecked, retriable and quiet in every task.
 */
final class Errors {
    private static final MethodHandle NEW_RETRIABLE = retriableConstructor();

    private Errors() { }

    /** For metadata calls, and for the future of a write. */
    static Exception ofMetadata(DaemonException error) {
        return switch (error.code()) {
            case DaemonException.SEGMENT_NOT_FOUND, DaemonException.NOT_ASSIGNED ->
                new RemoteResourceNotFoundException(error.getMessage(), error);
            case DaemonException.INVALID_ARGUMENT -> new IllegalArgumentException(error.getMessage(), error);
            default -> unavailableOrStorage(error);
        };
    }

    /**
     * For fetches. {@code RemoteIndexCache} reads RemoteResourceNotFoundException on the TRANSACTION index as "no
     * transaction was aborted", so there it is given only for what was recorded so.
     */
    static Exception ofFetch(DaemonException error, boolean transactionIndex) {
        return switch (error.code()) {
            case DaemonException.INDEX_NOT_FOUND -> new RemoteResourceNotFoundException(error.getMessage(), error);
            case DaemonException.SEGMENT_NOT_FOUND, DaemonException.NOT_ASSIGNED -> transactionIndex
                ? new RemoteStorageException(error.getMessage(), error)
                : new RemoteResourceNotFoundException(error.getMessage(), error);
            case DaemonException.INVALID_ARGUMENT -> new IllegalArgumentException(error.getMessage(), error);
            default -> unavailableOrStorage(error);
        };
    }

    /** RemoteStorageException is what makes the broker roll a copy back; anything else leaves it to retention. */
    static RemoteStorageException ofCopy(DaemonException error) {
        if (NEW_RETRIABLE != null && error.saysNoWriteBegun() && error.isRetriable()) {
            return retriable(error);
        }
        return new RemoteStorageException(error.getMessage(), error);
    }

    /** Checked, whatever it is: the broker counts it and comes back with its next turn. */
    static RemoteStorageException ofDelete(DaemonException error) {
        return new RemoteStorageException(error.getMessage(), error);
    }

    /** Throws a result of {@link #ofMetadata} or {@link #ofFetch}, whose classes these are. */
    static RuntimeException rethrow(Exception error) throws RemoteStorageException {
        if (error instanceof RemoteStorageException storage) {
            throw storage;
        }
        throw (RuntimeException) error;
    }

    private static Exception unavailableOrStorage(DaemonException error) {
        return error.isRetriable()
            ? new ReplicaNotAvailableException(error.getMessage(), error)
            : new RemoteStorageException(error.getMessage(), error);
    }

    private static RemoteStorageException retriable(DaemonException error) {
        try {
            return (RemoteStorageException) NEW_RETRIABLE.invoke(error.getMessage(), (Throwable) error);
        } catch (Throwable never) { // a constructor that only stores its arguments
            return new RemoteStorageException(error.getMessage(), error);
        }
    }

    /** Null on brokers that do not have the class yet (4.1). */
    private static MethodHandle retriableConstructor() {
        try {
            Class<?> found = Class.forName("org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException",
                true, RemoteStorageException.class.getClassLoader());
            return MethodHandles.publicLookup().findConstructor(
                found, MethodType.methodType(void.class, String.class, Throwable.class));
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }
}
