package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.concurrent.TimeUnit;

import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads the classes of the first messages while the manager is made and connects: one after the other they would take
 * longer than anything else between {@code configure} and the first partition that is ready. Later, when the processors
 * have less to do, those of the records, and shows the manager's beans, since JMX takes its time over the first one of a
 * kind: nobody asks for either before a partition is ready.
 */
final class WarmUp implements Runnable {
    private static final long LATER_MS = 500;
    private static final Logger LOG = LoggerFactory.getLogger(WarmUp.class);

    private final PluginConfig config;
    private final PluginMetrics metrics;

    private WarmUp(PluginConfig config, PluginMetrics metrics) {
        this.config = config;
        this.metrics = metrics;
    }

    /** On a thread of its own, which ends soon; whatever it meets is met, and told, by those who need the classes. */
    static void begin(PluginConfig config, PluginMetrics metrics) {
        new DaemonThreads("rlmm-daemon-warm-up-" + config.brokerId()).newThread(new WarmUp(config, metrics)).start();
    }

    @Override
    public void run() {
        try {
            greeting(config);
            TimeUnit.MILLISECONDS.sleep(LATER_MS);
            metrics.publish();
            Records.prepare();
        } catch (InterruptedException hurried) {
            Thread.currentThread().interrupt();
        } catch (DaemonException | IOException | RuntimeException | LinkageError met) {
            LOG.debug("warming up", met);
        }
    }

    /** Writes what the manager says first, and reads what a daemon may answer. */
    static Greeting.Welcome greeting(PluginConfig config) throws IOException, DaemonException {
        Greeting.hello(config, "broker", Greeting.METADATA);
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(1).packInt(Greeting.ID).packNil();
            packer.packArrayHeader(6).packInt(Wire.PROTOCOL).packString("warm").packNil().packInt(config.brokerId());
            packer.packArrayHeader(1).packString("write").packString("kafka");
            return Greeting.welcome(Wire.answer(packer.toByteArray()));
        }
    }
}
