package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.AbstractSet;
import java.util.Iterator;
import java.util.List;
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
            Connection.Owner owner = speaker(assignment, made);
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

    /** A daemon that is lost while the broker speaks must not be told of the change before it is told of the rest. */
    @Test
    void nothingIsSaidBeforeTheFullSetHoweverTheConnectionWasLost() throws Exception {
        try (RudeDaemon rude = new RudeDaemon()) {
            PluginConfig config = new PluginConfig(rude.configs(Map.of()), true);
            Assignment assignment = new Assignment();
            AtomicReference<Connection> made = new AtomicReference<>();
            Connection.Owner owner = speaker(assignment, made);
            PluginMetrics metrics = new PluginMetrics(Greeting.METADATA, config.brokerId());
            try (metrics; Connection connection = new Connection(config, Greeting.METADATA, owner, metrics)) {
                made.set(connection);
                connection.start();
                Wait.until("it is told all", () -> rude.asked.contains("replace_assignment"));
                assertTrue(isReady(new Caller(connection, metrics, 0)), "so the answer to it was taken as well");
                rude.asked.clear();
                assignment.changed(connection, new LosingSet(LED, rude, connection), Set.of());
                Wait.until("it is told all again", () -> rude.asked.contains("replace_assignment"));
                assertEquals(List.of("hello", "replace_assignment"), List.copyOf(rude.asked).subList(0, 2));
            }
        }
    }

    /** One partition; whoever copies it finds afterwards that the connection was lost meanwhile. */
    private static final class LosingSet extends AbstractSet<TopicIdPartition> {
        private final TopicIdPartition only;
        private final RudeDaemon rude;
        private final Connection connection;

        LosingSet(TopicIdPartition only, RudeDaemon rude, Connection connection) {
            this.only = only;
            this.rude = rude;
            this.connection = connection;
        }

        @Override
        public Iterator<TopicIdPartition> iterator() {
            return List.of(only).iterator();
        }

        @Override
        public int size() {
            return 1;
        }

        @Override
        public Object[] toArray() {
            assertTrue(connection.isOpen(), "it was looked at before");
            try {
                rude.hangUp();
                Wait.until("it is lost", () -> !connection.isOpen());
            } catch (Exception unexpected) {
                throw new AssertionError(unexpected);
            }
            return new Object[]{only};
        }
    }

    private static Connection.Owner speaker(Assignment assignment, AtomicReference<Connection> made) {
        return new Connection.Owner() {
            @Override
            public void onGreeted(Greeting.Welcome welcome) {
                assignment.greeted(made.get());
            }

            @Override
            public void onTick() {
                assignment.tick(made.get());
            }
        };
    }

    private static boolean isReady(Caller caller) throws DaemonException {
        return caller.call("is_ready", false, packer -> {
            packer.packArrayHeader(2);
            Wire.pack(packer, LED);
            packer.packLong(TIMEOUT_MS);
        }, TIMEOUT_MS).get(0).asBooleanValue().getBoolean();
    }
}
