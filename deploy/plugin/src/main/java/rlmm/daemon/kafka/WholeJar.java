package rlmm.daemon.kafka;

import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;
import java.util.Enumeration;
import java.util.concurrent.TimeUnit;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads every class of the plugin's jar soon after the broker began. An update may be copied over it while the broker
 * runs; a class that were asked for only then would not be found, and that error ends one of the broker's tasks for good,
 * without a word.
 */
final class WholeJar implements Runnable {
    private static final String SUFFIX = ".class";
    /** Until the first partitions are ready, and whoever waits for them does not wait for this. */
    private static final long LATER_MS = 2_000;
    private static final Logger LOG = LoggerFactory.getLogger(WholeJar.class);

    private WholeJar() { }

    /** On a thread of its own, which ends soon. */
    static void begin(String threadName) {
        new DaemonThreads(threadName).newThread(new WholeJar()).start();
    }

    @Override
    public void run() {
        try {
            TimeUnit.MILLISECONDS.sleep(LATER_MS);
            LOG.debug("{} classes are loaded", load());
        } catch (InterruptedException hurried) {
            Thread.currentThread().interrupt();
        } catch (IOException | URISyntaxException | RuntimeException met) {
            LOG.debug("loading the jar's classes", met);
        }
    }

    /** How many there are; none where this was not loaded from a jar. */
    static int load() throws IOException, URISyntaxException {
        CodeSource source = WholeJar.class.getProtectionDomain().getCodeSource();
        if (source == null || !Files.isRegularFile(Path.of(source.getLocation().toURI()))) {
            return 0;
        }
        int count = 0;
        try (JarFile jar = new JarFile(Path.of(source.getLocation().toURI()).toFile())) {
            for (Enumeration<JarEntry> entries = jar.entries(); entries.hasMoreElements();) {
                String name = entries.nextElement().getName();
                if (name.endsWith(SUFFIX) && !name.contains("-")) { // module-info, and META-INF
                    count += load(name.substring(0, name.length() - SUFFIX.length()).replace('/', '.'));
                }
            }
        }
        return count;
    }

    private static int load(String name) {
        try {
            Class.forName(name, false, WholeJar.class.getClassLoader());
            return 1;
        } catch (ClassNotFoundException | LinkageError older) { // a broker of this release has not all that it names
            LOG.debug("{} is not for this broker", name, older);
            return 0;
        }
    }
}
