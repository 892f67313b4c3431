package rlmm.daemon.kafka;

import java.util.stream.Stream;

/**
 * Whether the broker is deleting a topic's partitions on this thread.
 *
 * <p>It lists a partition's segments, marks, deletes and ends them on its metadata-publishing thread, under the lock of
 * its replicas, and never comes back to what failed. Retention makes the same calls from threads of its own, every half
 * minute anew, so there nothing has to be hurried or insisted on. The calls themselves do not say which it is; their
 * callers do. Should a later broker delete on another thread and by another name, this is false, and all is as in
 * retention.
 */
final class TopicDeletion {
    private static final String CLASS = ".RemoteLogManager";
    private static final String METHOD = "stopPartitions";
    private static final StackWalker STACK = StackWalker.getInstance();

    private TopicDeletion() { }

    /** Looks at a dozen frames, of every frame where it is not. */
    static boolean isUnderWay() {
        return STACK.walk(TopicDeletion::isAmong);
    }

    private static boolean isAmong(Stream<StackWalker.StackFrame> frames) {
        return frames.anyMatch(frame -> frame.getMethodName().equals(METHOD) && frame.getClassName().endsWith(CLASS));
    }
}
