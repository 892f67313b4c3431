package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.channels.FileChannel;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether this broker reads the daemon's local files by itself. It asks the daemon for each, which knows whether the
 * segment may be read, and spares both processes the way of the bytes through a socket. One that cannot be opened ends
 * it until the daemon is connected to anew; streams do the same, only slower.
 */
final class LocalFiles {
    private static final Logger LOG = LoggerFactory.getLogger(LocalFiles.class);

    private final boolean wanted;
    private volatile boolean open;

    LocalFiles(boolean wanted) {
        this.wanted = wanted;
        this.open = wanted;
    }

    /** Whether to ask for names. */
    boolean mayOpen() {
        return open;
    }

    /** Null if it cannot be opened; from then on there is no asking. */
    FileChannel open(LocalFile file) {
        try {
            return file.open();
        } catch (IOException | RuntimeException refused) { // also of a path or an attribute that this JVM does not know
            if (open) {
                LOG.info("The daemon's files are read through its socket, as this broker cannot open them: {}",
                    refused.toString());
            }
            open = false;
            return null;
        }
    }

    /** Another daemon may be another user's, or have another directory. */
    void askAgain() {
        open = wanted;
    }
}
