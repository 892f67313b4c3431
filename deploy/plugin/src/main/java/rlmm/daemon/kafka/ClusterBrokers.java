package rlmm.daemon.kafka;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.DescribeClusterOptions;

/** Asks the broker's own cluster, over the listener that the broker named for its metadata manager. */
final class ClusterBrokers implements SingleBrokerCheck.BrokerCount {
    private static final int TIMEOUT_MS = 5_000;

    private final PluginConfig config;

    ClusterBrokers(PluginConfig config) {
        this.config = config;
    }

    /** How many brokers are registered; one that is down will come back and need the same log. */
    @Override
    public int ask() throws Exception {
        Map<String, Object> settings = new HashMap<>(config.clientSettings());
        settings.put(AdminClientConfig.CLIENT_ID_CONFIG, "rlmm-daemon-plugin-" + config.brokerId());
        settings.put(AdminClientConfig.REQUEST_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        settings.put(AdminClientConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        try (Admin admin = Admin.create(settings)) {
            return admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true))
                .nodes().get(TIMEOUT_MS, TimeUnit.MILLISECONDS).size();
        }
    }
}
