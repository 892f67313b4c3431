package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.common.TopicIdPartition;
import org.junit.jupiter.api.Test;

final class AssignmentTest {
    private static final TopicIdPartition LED = Segments.partition("led", 0);
    private static final long TIMEOUT_MS = 5_000;

    @Test
    void whatWaitsIsSaidInTheOrderInWhichTheBrokerSaidIt() throws Exception {
        try (DaemonProcess daemon = DaemonProcess.started()) {
            PluginConfig config = new PluginConfig(daemon.configs(Map.of()), true);
            Assignment assignment = new Assignment();
            AtomicReference<Connection> made = new AtomicReference<>();
            Connection.Owner owner = new Connection.Owner() {
                @Override
                public void onGreeted(Greeting.Welcome welcome) {
                    assignment.greeted(made.get());
                }

                @Override
                public void onTick() {
                    assignment.tick(made.get());
                }
            };
            PluginMetrics metrics = new PluginMetrics(Greeting.METADATA, config.brokerId());
            try (Connection connection = new Connection(config, Greeting.METADATA, owner, metrics)) {
                made.set(connection);
                connection.open(); // nobody sends yet, so all of it waits
                for (int i = 0; i < 20; i++) {
                    assignment.stopped(connection, Set.of(LED));
                    assignment.changed(connection, Set.of(LED), Set.of());
                }
                connection.start();
                Caller caller = new Caller(connection, metrics, 0);
                Wait.until("the last word counts", () -> isReady(caller));
                for (int i = 0; i < 20; i++) {
                    assertTrue(isReady(caller), "an earlier word came later");
                }
            } finally {
                metrics.close();
            }
        }
    }

    private static boolean isReady(Caller caller) throws DaemonException {
        return caller.call("is_ready", false, packer -> {
            packer.packArrayHeader(2);
            Wire.pack(packer, LED);
            packer.packLong(TIMEOUT_MS);
        }, TIMEOUT_MS).get(0).asBooleanValue().getBoolean();
    }
}
