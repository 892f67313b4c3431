package rlmm.daemon.kafka;

import org.apache.kafka.server.log.remote.metadata.storage.BrokerReadyCallback;

/**
 * The same manager for brokers that tell their plugins when they serve (4.2 and later). It needs no such call: it
 * connects from {@code configure} on and repeats whatever came too early. Named here for configurations that look for
 * the interface; {@link RlmmDaemonMetadataManager} itself must load where the interface is absent.
 */
public final class RlmmDaemonMetadataManagerWithCallback extends RlmmDaemonMetadataManager
        implements BrokerReadyCallback {
    /** Called by the broker. */
    public RlmmDaemonMetadataManagerWithCallback() { }

    /** Asks at once what was to be asked again in a moment. */
    @Override
    public void onBrokerReady() {
        brokerIsReady();
    }
}
