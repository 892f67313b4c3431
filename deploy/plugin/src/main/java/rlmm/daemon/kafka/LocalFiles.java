package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.util.concurrent.TimeUnit;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether this broker reads the daemon's local files by itself. It asks the daemon for each, which knows whether the
 * segment may be read, and spares both processes the way of the bytes through a socket. One that cannot be opened ends
 * that for a while: it may have been deleted meanwhile, or this broker sees none of them. Streams do the same, only
 * slower.
 */
final class LocalFiles {
    private static final Logger LOG = LoggerFactory.getLogger(LocalFiles.class);
    static final long PAUSE_MS = 60_000;

    private final boolean wanted;
    private final long pauseNanos;
    private volatile boolean told;
    private volatile boolean paused;
    private volatile long pausedAt;

    LocalFiles(boolean wanted, long pauseMs) {
        this.wanted = wanted;
        this.pauseNanos = TimeUnit.MILLISECONDS.toNanos(pauseMs);
    }

    /** Whether to ask for names. */
    boolean mayOpen() {
        return wanted && (!paused || System.nanoTime() - pausedAt >= pauseNanos);
    }

    /** Null if it cannot be opened, or not for whoever named it. */
    FileChannel open(LocalFile file, boolean mayBeNamed) {
        try {
            if (!mayBeNamed) {
                throw new IOException("who named " + file.path() + " is not known as the daemon; see daemon.user");
            }
            FileChannel opened = file.open();
            paused = false;
            return opened;
        } catch (IOException | RuntimeException refused) { // also of a path or an attribute that this JVM does not know
            if (!told) {
                LOG.info("Segments are read through the daemon's socket, as its file cannot be opened here: {}",
                    refused.toString());
            }
            told = true;
            pausedAt = System.nanoTime();
            paused = true;
            return null;
        }
    }

    /** Another daemon may be another user's, or have another directory. */
    void askAgain() {
        paused = false;
    }
}
