package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Set;

import org.apache.kafka.common.config.ConfigException;
import org.junit.jupiter.api.Test;

final class PluginConfigTest {
    @Test
    void whatABrokerGivesIsEnough() {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 3, "cluster.id", "c", "log.dir", "/x"), true);
        assertEquals("/run/rlmm/rlmm.sock", config.socketPath());
        assertEquals(3, config.brokerId());
        assertEquals(5_000, config.integer(PluginConfig.METADATA_TIMEOUT_MS));
        assertEquals(100, config.integer(PluginConfig.HOLD_MS));
        assertEquals(60_000, config.integer(PluginConfig.DELETE_FAIL_FAST_MS));
        assertTrue(config.singleBrokerCheck());
        assertNull(config.bootstrap());
    }

    @Test
    void aStorageManagerDoesNotKnowItsCluster() {
        assertNull(new PluginConfig(Map.of("broker.id", 3), false).clusterId());
        assertThrows(ConfigException.class, () -> new PluginConfig(Map.of("broker.id", 3), true));
    }

    @Test
    void numbersMayBeOfAnyClassOrText() {
        for (Object ten : new Object[]{10, (short) 10, 10L, "10"}) {
            PluginConfig config = new PluginConfig(Map.of("broker.id", ten, "metadata.timeout.ms", ten), false);
            assertEquals(10, config.brokerId());
            assertEquals(10, config.integer(PluginConfig.METADATA_TIMEOUT_MS));
        }
    }

    @Test
    void theSocketMayBeNamedAfterTheBroker() {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 12, "socket.path", "/r/%{broker.id}/s"), false);
        assertEquals("/r/12/s", config.socketPath());
    }

    @Test
    void aPathThatNoSocketCanHaveIsRefusedByName() {
        ConfigException error = assertThrows(ConfigException.class,
            () -> new PluginConfig(Map.of("broker.id", 1, "socket.path", "/" + "x".repeat(107)), false));
        assertTrue(error.getMessage().contains("socket.path") && error.getMessage().contains("107"), error.getMessage());
    }

    @Test
    void aMisspeltKeyIsNamedAndWhatBrokersAndKafkasManagerBringIsNot() {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 1, "cluster.id", "c", "log.dir", "/x",
            "remote.log.metadata.topic.num.partitions", "5", "hold.ms", "5", "hold.msec", "7"), true);
        assertEquals(Set.of("hold.msec"), config.ignored());
    }

    @Test
    void clientSettingsAreThoseOfTheTopicBasedManager() {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 1,
            "remote.log.metadata.common.client.bootstrap.servers", "h:1",
            "remote.log.metadata.common.client.sasl.mechanism", "PLAIN",
            "remote.log.metadata.topic.num.partitions", "5"), false);
        assertEquals("h:1", config.bootstrap());
        assertEquals(Map.of("bootstrap.servers", "h:1", "sasl.mechanism", "PLAIN"), config.clientSettings());
    }
}
