package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlmm.daemon.kafka.Segments.ORDERS;

import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.apache.kafka.common.TopicIdPartition;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What is asked ahead of the broker's questions, and which answers may stand in for one. */
final class ReadyAheadTest {
    private static final int ROOM = 512;
    /** Of a test that is not about time. */
    private static final long FOR_EVER_MS = 600_000;

    private RudeDaemon daemon;
    private PluginMetrics metrics;
    private Connection connection;
    /** The numbers of the partitions that were asked for, in that order. */
    private final Queue<Integer> questions = new ConcurrentLinkedQueue<>();

    private final class Opening implements Connection.Owner {
        @Override
        public void onGreeted(Greeting.Welcome welcome) {
            connection.open();
        }

        @Override
        public void onTick() {
            // Nothing to do.
        }
    }

    @BeforeEach
    void connect() throws Exception {
        daemon = new RudeDaemon();
        answer(packer -> packer.packBoolean(true));
        metrics = new PluginMetrics("ahead", 9);
        connection = new Connection(new PluginConfig(daemon.configs(Map.of()), true), Greeting.METADATA, new Opening(), metrics);
        connection.start();
        Wait.until("connected", connection::isOpen);
    }

    @AfterEach
    void end() throws Exception {
        connection.close();
        metrics.close();
        daemon.close();
    }

    private void answer(Wire.Params result) {
        daemon.answer("is_ready", id -> {
            questions.add(daemon.params.get(0).asArrayValue().get(2).asIntegerValue().asInt());
            return RudeDaemon.answer(id, result);
        });
    }

    private ReadyAhead of(int partitions, int room, long usedMs) {
        ReadyAhead ahead = new ReadyAhead(connection, room, usedMs);
        for (int number = 0; number < partitions; number++) {
            ahead.announced(Set.of(partition(number)));
        }
        return ahead;
    }

    private static TopicIdPartition partition(int number) {
        return new TopicIdPartition(ORDERS.topicId(), number, ORDERS.topic());
    }

    /** Asks ahead, and waits until whatever was asked has its answer. */
    private void askOthers(ReadyAhead ahead) throws Exception {
        ahead.askOthers();
        Call last = new Call("last", false, packer -> packer.packArrayHeader(0), FOR_EVER_MS);
        connection.submit(last);
        last.future.get(50, TimeUnit.SECONDS);
    }

    private static List<Integer> numbers(int from, int to) {
        return IntStream.range(from, to).boxed().toList();
    }

    @Test
    void aYesStandsInForOneQuestionAndForNoMore() throws Exception {
        ReadyAhead ahead = of(3, ROOM, FOR_EVER_MS);
        assertFalse(ahead.isKnown(partition(0)), "nobody has asked");
        askOthers(ahead);
        assertEquals(numbers(1, 3), List.copyOf(questions), "the first is asked for by itself");
        assertFalse(ahead.isKnown(partition(0)));
        for (int number = 1; number < 3; number++) {
            assertTrue(ahead.isKnown(partition(number)));
            assertFalse(ahead.isKnown(partition(number)));
        }
    }

    @Test
    void ofThousandsAFewAreAskedAtATimeAndEachOnce() throws Exception {
        ReadyAhead ahead = of(2_000, ROOM, FOR_EVER_MS);
        askOthers(ahead);
        askOthers(ahead); // some are known
        assertEquals(numbers(0, 256), List.copyOf(questions));
        questions.forEach(number -> assertTrue(ahead.isKnown(partition(number))));
        for (int times = 0; times < 20; times++) {
            askOthers(ahead);
            List.copyOf(questions).forEach(number -> ahead.isKnown(partition(number)));
        }
        assertEquals(numbers(0, 2_000), List.copyOf(questions));
    }

    /** Else each of a broker's ticks, half a minute apart, would ask for hundreds. */
    @Test
    void whatWasAskedAheadForNothingIsNotAskedAheadAgain() throws Exception {
        ReadyAhead ahead = of(3, ROOM, FOR_EVER_MS);
        askOthers(ahead);
        ahead.lost();
        askOthers(ahead);
        assertEquals(numbers(0, 3), List.copyOf(questions));
        ahead.announced(Set.of(partition(1)));
        askOthers(ahead);
        assertEquals(List.of(0, 1, 2, 1), List.copyOf(questions));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 20})
    void halfOfTheRoomIsLeftToOthers(int room) throws Exception {
        askOthers(of(100, room, FOR_EVER_MS));
        assertEquals(room / 2, questions.size());
    }

    @Test
    void whateverIsNoYesIsAskedAgain() throws Exception {
        for (Wire.Params result : List.<Wire.Params>of(packer -> packer.packBoolean(false), packer -> packer.packNil(),
            packer -> packer.packString("yes"), packer -> packer.packArrayHeader(0))) {
            answer(result);
            ReadyAhead ahead = of(1, ROOM, FOR_EVER_MS);
            askOthers(ahead);
            assertFalse(ahead.isKnown(partition(0)));
        }
        daemon.answer("is_ready", id -> RudeDaemon.error(id, DaemonException.NOT_READY));
        ReadyAhead ahead = of(1, ROOM, FOR_EVER_MS);
        askOthers(ahead);
        assertFalse(ahead.isKnown(partition(0)));
        daemon.answer("is_ready", id -> new byte[0]);
        ahead.announced(Set.of(partition(0)));
        askOthers(ahead);
        assertFalse(ahead.isKnown(partition(0)), "and nobody waits for an answer");
    }

    @Test
    void aYesIsForgottenOnceItIsOld() throws Exception {
        long usedMs = 300;
        ReadyAhead ahead = of(2, ROOM, usedMs);
        askOthers(ahead);
        long asked = System.nanoTime();
        Wait.until("it is old", () -> System.nanoTime() - asked > TimeUnit.MILLISECONDS.toNanos(usedMs));
        assertFalse(ahead.isKnown(partition(0)));
        assertFalse(ahead.isKnown(partition(1)));
    }

    @Test
    void aYesIsForgottenWithTheConnectionAndWhenTheBrokerSaysSomethingNewOfThePartition() throws Exception {
        ReadyAhead ahead = of(4, ROOM, FOR_EVER_MS);
        askOthers(ahead);
        ahead.stopped(Set.of(partition(0)));
        ahead.announced(Set.of(partition(1)));
        assertFalse(ahead.isKnown(partition(0)));
        assertFalse(ahead.isKnown(partition(1)));
        assertTrue(ahead.isKnown(partition(2)));
        ahead.lost();
        assertFalse(ahead.isKnown(partition(3)));
    }

    @Test
    void whatWasStoppedOrAskedForIsNotAskedAhead() throws Exception {
        ReadyAhead ahead = of(4, ROOM, FOR_EVER_MS);
        ahead.stopped(Set.of(partition(0)));
        assertFalse(ahead.isKnown(partition(2)));
        askOthers(ahead);
        assertEquals(List.of(1, 3), List.copyOf(questions));
    }

    @Test
    void withoutAConnectionNothingIsAskedAndNothingThrown() throws Exception {
        ReadyAhead ahead = of(4, ROOM, FOR_EVER_MS);
        connection.close();
        ahead.askOthers();
        assertFalse(ahead.isKnown(partition(0)));
    }

    /** Not only one: a machine may be so slow that the answers are too old. */
    @Test
    void aManagerAsksForTheOthersOnceOneIsReady() throws Exception {
        try (RlmmDaemonMetadataManager manager = new RlmmDaemonMetadataManager()) {
            manager.configure(daemon.configs(Map.of()));
            Set<TopicIdPartition> both = numbers(0, 2).stream().map(ReadyAheadTest::partition).collect(Collectors.toSet());
            Wait.until("the second is asked for, by nobody", () -> {
                manager.onPartitionLeadershipChanges(both, Set.of());
                return manager.isReady(partition(0)) && questions.contains(1);
            });
            answer(packer -> packer.packBoolean(false));
            Wait.until("what was said before is too old", () -> !manager.isReady(partition(1)));
            assertFalse(manager.isReady(partition(1)));
        }
    }
}
