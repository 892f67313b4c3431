package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.OutputStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

final class WholeJarTest {
    /** The plugin's own classes as a jar; their names. */
    private static List<String> pack(Path jar) throws Exception {
        Path classes = Path.of(WholeJar.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        List<String> names = new ArrayList<>();
        try (OutputStream file = Files.newOutputStream(jar); ZipOutputStream zip = new ZipOutputStream(file);
             Stream<Path> found = Files.walk(classes)) {
            for (Path each : found.filter(path -> path.toString().endsWith(".class")).toList()) {
                String name = classes.relativize(each).toString();
                zip.putNextEntry(new ZipEntry(name));
                zip.write(Files.readAllBytes(each));
                if (!name.contains("-")) {
                    names.add(name.replace(".class", "").replace('/', '.'));
                }
            }
        }
        return names;
    }

    /** As Kafka's loader of a plugin does: what is there is taken from there. */
    private static final class ChildFirst extends URLClassLoader {
        ChildFirst(Path jar) throws Exception {
            super(new URL[]{jar.toUri().toURL()}, WholeJarTest.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            Class<?> known = findLoadedClass(name);
            return known != null ? known : name.startsWith("rlmm.") ? findClass(name) : super.loadClass(name, resolve);
        }
    }

    /** `cp new.jar /opt/rlmm/`, while the broker runs. */
    @Test
    void aJarThatIsOverwrittenUnderTheBrokerTakesNoClassAway(@TempDir Path directory) throws Exception {
        Path jar = directory.resolve("plugin.jar");
        List<String> names = pack(jar);
        assertTrue(names.contains(WholeJar.class.getName()));
        try (ChildFirst loader = new ChildFirst(jar)) {
            var load = loader.loadClass(WholeJar.class.getName()).getDeclaredMethod("load");
            load.setAccessible(true);
            assertEquals(names.size(), load.invoke(null));
            Files.write(jar, "another one".getBytes());
            for (String name : names) {
                assertSame(loader, Class.forName(name, true, loader).getClassLoader(), name);
            }
        }
    }

    @Test
    void whereThereIsNoJarNothingIsLoaded() throws Exception {
        assertEquals(0, WholeJar.load());
    }
}
