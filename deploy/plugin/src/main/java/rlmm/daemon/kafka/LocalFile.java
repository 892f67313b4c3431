package rlmm.daemon.kafka;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.Set;

/** A segment's log that the daemon keeps as a file of this host, and names to whoever may open it. */
record LocalFile(String path, long device, long inode) {
    private static final String ATTRIBUTES = "unix:dev,ino,isRegularFile";

    /**
     * Opens it for reading; what it is has to be known before, as opening a pipe waits for its writer.
     *
     * @throws IOException the broker's user may not, or sees another file there than the daemon does
     */
    FileChannel open() throws IOException {
        Path place = Path.of(path);
        requireSame(Files.readAttributes(place, ATTRIBUTES, LinkOption.NOFOLLOW_LINKS));
        FileChannel opened = FileChannel.open(place, Set.of(StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS));
        try {
            requireSame(Files.readAttributes(place, ATTRIBUTES, LinkOption.NOFOLLOW_LINKS));
            return opened;
        } catch (IOException | RuntimeException other) {
            opened.close();
            throw other;
        }
    }

    /** A broker with a mount namespace of its own may have something else under the same name. */
    private void requireSame(Map<String, Object> seen) throws IOException {
        if (((Number) seen.get("dev")).longValue() != device || ((Number) seen.get("ino")).longValue() != inode) {
            throw new IOException(path + " is another file for the broker than for the daemon");
        }
        if (!Boolean.TRUE.equals(seen.get("isRegularFile"))) {
            throw new IOException(path + " is no regular file");
        }
    }
}
