package org.apache.kafka.tiered.storage;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Properties;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.tiered.storage.actions.DeleteTopicAction;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;

/**
 * One of Kafka's own tests of tiered storage, with our metadata manager instead of Kafka's and the storage that it
 * comes with: `-Drlmm.test=` its class, `-Drlmm.directory=` where the daemons' directories are, `broker-N` each. The
 * brokers' address is left there in the file `bootstrap`. In this package because what a test expects is protected.
 */
final class KafkasOwnTest extends TieredStorageTestHarness {
    private static final Path DIRECTORY = Path.of(System.getProperty("rlmm.directory"));

    private final TieredStorageTestHarness test = chosen();

    private static TieredStorageTestHarness chosen() {
        try {
            var constructor = Class.forName(System.getProperty("rlmm.test")).getDeclaredConstructor();
            constructor.setAccessible(true);
            return (TieredStorageTestHarness) constructor.newInstance();
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(error);
        }
    }

    @Override
    public int brokerCount() {
        return test.brokerCount();
    }

    @Override
    protected int numRemoteLogMetadataPartitions() {
        return test.numRemoteLogMetadataPartitions();
    }

    @Override
    public Properties overridingProps() {
        Properties all = super.overridingProps();
        all.put("remote.log.metadata.manager.class.name", "rlmm.daemon.kafka.RlmmDaemonMetadataManager");
        String prefix = all.getOrDefault("remote.log.metadata.manager.impl.prefix", "rlmm.config.").toString();
        all.put(prefix + "socket.path", DIRECTORY.resolve("broker-%{broker.id}/var/rlmm.sock").toString());
        return all;
    }

    @Override
    protected void writeTestSpecifications(TieredStorageTestBuilder builder) {
        test.writeTestSpecifications(builder);
    }

    @Override
    @BeforeEach
    public void setUp(TestInfo info) {
        super.setUp(info);
        leave("bootstrap", bootstrapServers(ListenerName.forSecurityProtocol(SecurityProtocol.PLAINTEXT)));
    }

    private static void leave(String name, String text) {
        try {
            Path partly = Files.writeString(DIRECTORY.resolve(name + ".partly"), text);
            Files.move(partly, DIRECTORY.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** As the harness does it, but for the file `deleting` that tells when a topic's deletion is next. */
    @Override
    public void executeTieredStorageTest(String groupProtocol) { // without the annotation, so no test by itself
        TieredStorageTestBuilder builder = new TieredStorageTestBuilder();
        writeTestSpecifications(builder);
        try {
            var field = TieredStorageTestHarness.class.getDeclaredField("context");
            field.setAccessible(true);
            for (TieredStorageTestAction action : builder.complete()) {
                if (action instanceof DeleteTopicAction) {
                    leave("deleting", "");
                }
                action.execute((TieredStorageTestContext) field.get(this));
            }
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    @Test
    @DisplayName("withDaemons.groupProtocol=consumer")
    void withDaemons() {
        executeTieredStorageTest("consumer");
    }
}
