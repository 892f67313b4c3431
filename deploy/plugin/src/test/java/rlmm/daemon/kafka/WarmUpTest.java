package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.Set;

import javax.management.ObjectName;

import org.junit.jupiter.api.Test;

final class WarmUpTest {
    private static Set<ObjectName> beans() throws Exception {
        return ManagementFactory.getPlatformMBeanServer().queryNames(new ObjectName("rlmm.daemon:*,part=warm,broker=9"), null);
    }

    private final PluginConfig config = new PluginConfig(Map.of("broker.id", 9, "cluster.id", "c"), true);

    @Test
    void theAnswerThatItReadsIsOne() throws Exception {
        assertEquals(new Greeting.Welcome("warm", null, Set.of("write"), "kafka"), WarmUp.greeting(config));
    }

    @Test
    void whatWasCountedBeforeAndAfterIsToBeSeenInJmxSoonAndGoneInTheEnd() throws Exception {
        try (PluginMetrics metrics = new PluginMetrics("warm", 9)) {
            metrics.called("before", 1, true);
            WarmUp.begin(config, metrics);
            Wait.until("to be seen", () -> beans().size() == 2);
            metrics.called("after", 1, true);
            assertEquals(3, beans().size());
        }
        assertEquals(Set.of(), beans());
    }

    @Test
    void nothingIsToBeSeenOfWhatWasClosedBefore() throws Exception {
        PluginMetrics metrics = new PluginMetrics("warm", 9);
        metrics.close();
        metrics.publish();
        metrics.called("late", 1, true);
        assertEquals(Set.of(), beans());
    }
}
