package rlmm.daemon.kafka;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** A real daemon in a directory of its own: embedded log, local storage. Killed, stopped and started by its pid. */
final class DaemonProcess implements AutoCloseable {
    static final int BROKER_ID = 7;
    static final String CLUSTER_ID = "plugin-test-cluster";
    private final Path directory;
    private Process process;

    DaemonProcess() throws IOException {
        this.directory = Files.createTempDirectory("rlmm");
        Files.createDirectories(logDir());
        Files.createDirectories(remote());
        Files.writeString(directory.resolve("rlmm.toml"), """
            [daemon]
            broker_id = %d
            cluster_id = "%s"
            state_dir = "%s/state"
            log_dirs = ["%s"]
            [socket]
            path = "%s"
            [event_log]
            kind = "embedded"
            single_broker = true
            partition_count = 4
            [storage]
            kind = "local"
            directory = "%s"
            [admin]
            listen = ""
            """.formatted(BROKER_ID, CLUSTER_ID, directory, logDir(), socket(), remote()));
    }

    /** Started already. */
    static DaemonProcess started() throws Exception {
        DaemonProcess daemon = new DaemonProcess();
        daemon.start();
        return daemon;
    }

    Path socket() {
        return directory.resolve("d-" + BROKER_ID + ".sock");
    }

    Path logDir() {
        return directory.resolve("kafka-logs");
    }

    Path remote() {
        return directory.resolve("remote");
    }

    /** What a broker would hand to a plugin, under either prefix. */
    Map<String, Object> configs(Map<String, ?> more) {
        Map<String, Object> configs = new HashMap<>();
        configs.put(PluginConfig.BROKER_ID, BROKER_ID);
        configs.put(PluginConfig.CLUSTER_ID, CLUSTER_ID);
        configs.put(PluginConfig.SOCKET_PATH, directory + "/d-%{broker.id}.sock");
        // As of a broker whose remote.log.metadata.manager.listener.name is set; tests answer for the cluster.
        configs.put(PluginConfig.CLIENT_PREFIX + "bootstrap.servers", "127.0.0.1:1");
        // The socket is what is tested, but for LocalFilesTest.
        configs.put(PluginConfig.FETCH_OPEN_FILES, "false");
        configs.putAll(more);
        return configs;
    }

    void start() throws Exception {
        String command = System.getProperty("rlmm.command");
        if (command == null || !Files.isExecutable(Path.of(command))) {
            throw new IllegalStateException("no daemon to test against: -Drlmm.command=" + command + " (`make install`)");
        }
        Path output = directory.resolve("daemon.log");
        process = new ProcessBuilder(command, "run", "--config", directory.resolve("rlmm.toml").toString())
            .directory(directory.toFile()).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(output.toFile())).start();
        Wait.until("the daemon answers", () -> {
            if (!process.isAlive()) {
                throw new AssertionError("the daemon ended: " + lastWords(output));
            }
            return answers();
        });
    }

    private static String lastWords(Path output) throws IOException {
        String said = Files.readString(output).strip();
        return said.substring(said.lastIndexOf('\n') + 1);
    }

    private boolean answers() {
        try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            return channel.connect(UnixDomainSocketAddress.of(socket()));
        } catch (IOException notYet) {
            return false;
        }
    }

    /** SIGKILL: nothing is said to anybody. */
    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    /** SIGSTOP: it takes connections and requests, and says nothing. */
    void freeze() throws Exception {
        signal("-STOP");
    }

    void thaw() throws Exception {
        signal("-CONT");
    }

    private void signal(String which) throws Exception {
        Process kill = new ProcessBuilder("kill", which, Long.toString(process.pid())).start();
        if (!kill.waitFor(5, TimeUnit.SECONDS) || kill.exitValue() != 0) {
            throw new IllegalStateException("kill " + which);
        }
    }

    @Override
    public void close() throws Exception {
        if (process != null) {
            kill();
        }
        try (var files = Files.walk(directory)) {
            for (Path file : files.sorted(java.util.Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        }
    }
}
