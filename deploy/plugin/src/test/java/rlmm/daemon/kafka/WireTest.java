package rlmm.daemon.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.EOFException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.junit.jupiter.api.Test;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.ArrayValue;

final class WireTest {
    private static final HexFormat HEX = HexFormat.of();

    @Test
    void aRequestIsALengthAndOneArray() {
        TopicIdPartition partition = new TopicIdPartition(new Uuid(1, 2), new TopicPartition("t", 5));
        ByteBuffer frame = Wire.request(9, "is_ready", packer -> {
            packer.packArrayHeader(2);
            Wire.pack(packer, partition);
            packer.packLong(500);
        });
        byte[] bytes = new byte[frame.remaining()];
        frame.get(bytes);
        assertEquals("00000026" + "94" + "00" + "09" + "a8" + HEX.formatHex("is_ready".getBytes()) + "92" + "93"
            + "c410" + "0000000000000001" + "0000000000000002" + "a174" + "05" + "cd01f4", HEX.formatHex(bytes));
    }

    @Test
    void aCancelNamesItsRequest() {
        ByteBuffer frame = Wire.cancel(300);
        byte[] bytes = new byte[frame.remaining()];
        frame.get(bytes);
        assertEquals("0000000d" + "93" + "02" + "a6" + HEX.formatHex("cancel".getBytes()) + "91" + "cd012c",
            HEX.formatHex(bytes));
    }

    @Test
    void helloSaysWhichBrokerThisIsAndSinceWhen() throws Exception {
        PluginConfig config = new PluginConfig(Map.of("broker.id", 3, "cluster.id", "c",
            "remote.log.metadata.common.client.bootstrap.servers", "h:1"), true);
        for (String part : List.of(Greeting.METADATA, Greeting.STORAGE)) {
            ByteBuffer frame = Greeting.hello(config, "broker", part).position(Wire.HEADER_BYTES);
            byte[] body = new byte[frame.remaining()];
            frame.get(body);
            ArrayValue params;
            try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(body)) {
                params = unpacker.unpackValue().asArrayValue().get(3).asArrayValue();
            }
            assertEquals(Wire.PROTOCOL, params.get(0).asIntegerValue().asInt());
            assertEquals(List.of("broker", part, "c", "3",
                String.valueOf(ManagementFactory.getRuntimeMXBean().getStartTime()), "h:1"),
                params.list().subList(2, 8).stream().map(Object::toString).toList());
        }
    }

    @Test
    void anErrorKeepsItsCodeAndWhetherAWriteWasBegun() throws Exception {
        byte[] body = body("9401" + "07" + "94" + "ccca" + "a36f766c" + "a46d616e79"
            + "81" + "ab" + HEX.formatHex("write_begun".getBytes()) + "c2" + "c0");
        Wire.Answer answer = Wire.answer(body);
        assertEquals(7, answer.id());
        assertEquals(DaemonException.OVERLOADED, answer.error().code());
        assertEquals("ovl: many", answer.error().getMessage());
        assertTrue(answer.error().saysNoWriteBegun());
    }

    @Test
    void aResultMayBeNil() throws Exception {
        Wire.Answer answer = Wire.answer(body("9401" + "01" + "c0" + "c0"));
        assertNull(answer.error());
        assertTrue(answer.result().isNilValue());
    }

    @Test
    void whateverIsNoAnswerIsSaidToBeGarbled() {
        for (String hex : new String[]{"", "c0", "90", "94000102", "9300a161c0", "940101c0", "ff", "94c0c0c0c0", "9401c0c0c0"}) {
            DaemonException error = assertThrows(DaemonException.class, () -> Wire.answer(body(hex)), hex);
            assertTrue(error.isRetriable(), hex);
        }
    }

    @Test
    void framesAreCutWhereverTheStreamIs() throws Exception {
        byte[] stream = body("00000003" + "010203" + "00000000" + "00000001" + "04" + "0506");
        for (int buffer = 5; buffer <= stream.length; buffer++) {
            FrameReader reader = new FrameReader(buffer, Wire.FRAME_BYTES_MAX);
            var channel = Channels.newChannel(new java.io.ByteArrayInputStream(stream));
            assertArrayEquals(new byte[]{1, 2, 3}, next(reader, channel));
            assertArrayEquals(new byte[]{}, next(reader, channel));
            assertArrayEquals(new byte[]{4}, next(reader, channel));
            assertThrows(EOFException.class, () -> next(reader, channel));
        }
    }

    @Test
    void aLengthBeyondAnyAnswerIsNotReadIntoMemory() throws Exception {
        FrameReader reader = new FrameReader(16, Wire.FRAME_BYTES_MAX);
        reader.fill(Channels.newChannel(new java.io.ByteArrayInputStream(body("ffffffff00"))));
        assertThrows(DaemonException.class, reader::next);
    }

    /** Forty lies would be two gigabytes and a half. */
    @Test
    void roomIsMadeForWhatHasComeAndNotForWhatWasAnnounced() throws Exception {
        var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        byte[] announced = ByteBuffer.allocate(1_004).putInt(Wire.FRAME_BYTES_MAX).array();
        long before = threads.getThreadAllocatedBytes(Thread.currentThread().getId());
        for (int i = 0; i < 40; i++) {
            FrameReader reader = new FrameReader(4_096, Wire.FRAME_BYTES_MAX);
            reader.fill(Channels.newChannel(new java.io.ByteArrayInputStream(announced)));
            assertNull(reader.next());
        }
        long bytes = threads.getThreadAllocatedBytes(Thread.currentThread().getId()) - before;
        assertTrue(bytes < Wire.FRAME_BYTES_MAX, bytes + " bytes");
    }

    @Test
    void aLongFrameIsWhole() throws Exception {
        byte[] body = new byte[1_000_003];
        new java.util.Random(1).nextBytes(body);
        byte[] stream = ByteBuffer.allocate(4 + body.length + 1).putInt(body.length).put(body).array();
        FrameReader reader = new FrameReader(10_000, Wire.FRAME_BYTES_MAX);
        assertArrayEquals(body, next(reader, Channels.newChannel(new java.io.ByteArrayInputStream(stream))));
    }

    private static byte[] next(FrameReader reader, java.nio.channels.ReadableByteChannel channel) throws Exception {
        byte[] body;
        while ((body = reader.next()) == null) {
            reader.fill(channel);
        }
        return body;
    }

    private static byte[] body(String hex) {
        return HEX.parseHex(hex);
    }
}
