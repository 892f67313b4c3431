package rlmm.daemon.kafka;

import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * Asks a cluster how many brokers it has, as the plugin does: for each file of properties that is named, what a broker
 * would hand to `configure`, a line with the number, or with why there is none.
 */
final class AskCluster {
    private AskCluster() { }

    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties given = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                given.load(reader);
            }
            Map<String, Object> configs = new HashMap<>();
            given.forEach((key, value) -> configs.put(key.toString(), value));
            try {
                System.out.println(new ClusterBrokers(new PluginConfig(configs, true)).ask());
            } catch (Exception refused) {
                Throwable plain = refused.getCause() == null ? refused : refused.getCause();
                System.out.println(plain.getClass().getSimpleName());
            }
        }
    }
}
