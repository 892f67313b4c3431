package rlmm.daemon.kafka;

import java.io.IOException;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.value.Value;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads the classes of the first messages while the manager connects. One after the other they would take longer than
 * anything else between {@code configure} and the first partition that is ready. Those of the records come later: nobody
 * asks for a record before a partition is ready, and the processors have enough to do until then.
 */
final class WarmUp {
    private static final long RECORDS_LATER_MS = 500;
    private static final Logger LOG = LoggerFactory.getLogger(WarmUp.class);

    private WarmUp() { }

    /** On a thread of its own, which ends soon; whatever it meets is met, and told, by those who need the classes. */
    static void begin(int brokerId) {
        new DaemonThreads("rlmm-daemon-warm-up-" + brokerId).newThread(WarmUp::run).start();
    }

    private static void run() {
        try {
            message();
            TimeUnit.MILLISECONDS.sleep(RECORDS_LATER_MS);
            Records.prepare();
        } catch (InterruptedException hurried) {
            Thread.currentThread().interrupt();
        } catch (DaemonException | IOException | RuntimeException | LinkageError met) {
            LOG.debug("warming up", met);
        }
    }

    /** Writes a request and reads an answer that holds a value of each kind; returns what was in it. */
    static Value message() throws IOException, DaemonException {
        TopicIdPartition none = new TopicIdPartition(Uuid.ZERO_UUID, new TopicPartition("", 0));
        Wire.request(Greeting.ID, "hello", packer -> {
            packer.packArrayHeader(2);
            Wire.pack(packer, none);
            packer.packLong(0);
        });
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(1).packInt(Greeting.ID).packNil();
            packer.packArrayHeader(4).packString("").packBoolean(true).packDouble(0);
            packer.packMapHeader(1).packString("").packInt(0);
            return Wire.answer(packer.toByteArray()).result();
        }
    }
}
