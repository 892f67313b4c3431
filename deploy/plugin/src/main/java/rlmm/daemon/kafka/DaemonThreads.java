package rlmm.daemon.kafka;

import java.util.concurrent.ThreadFactory;

/** Makes threads that do not keep the broker's process alive. */
record DaemonThreads(String name) implements ThreadFactory {
    @Override
    public Thread newThread(Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }
}
