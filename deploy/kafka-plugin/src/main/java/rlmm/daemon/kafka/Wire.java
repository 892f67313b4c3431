package rlmm.daemon.kafka;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePacker;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.ArrayValue;
import org.msgpack.value.Value;

/**
 * The socket's bytes: an unsigned 32-bit big-endian length, then one MessagePack array.
 *
 * <p>{@code [0, id, method, params]} asks, {@code [1, id, error, result]} answers, {@code [2, "cancel", [id]]} gives
 * up. Params and results are arrays that only ever grow at their end.
 */
final class Wire {
    static final int PROTOCOL = 1;
    static final int HEADER_BYTES = Integer.BYTES;
    /** More than a page of a listing ever has: a length beyond it is not the daemon talking. */
    static final int FRAME_BYTES_MAX = 64 * 1024 * 1024;
    /** Answers with this id speak of the connection, which the daemon then closes. */
    static final int CONNECTION_ID = 0;
    private static final int REQUEST = 0;
    private static final int RESPONSE = 1;
    private static final int NOTIFICATION = 2;

    private Wire() { }

    /** Packs one method's parameters, as one array. */
    @FunctionalInterface
    interface Params {
        void pack(MessagePacker packer) throws IOException;
    }

    /** One answer; exactly one of the two is not null, unless the result is nil. */
    record Answer(int id, DaemonException error, Value result) { }

    static ByteBuffer request(int id, String method, Params params) {
        return frame(packer -> {
            packer.packArrayHeader(4).packInt(REQUEST).packInt(id).packString(method);
            params.pack(packer);
        });
    }

    static ByteBuffer cancel(int id) {
        return frame(packer ->
            packer.packArrayHeader(3).packInt(NOTIFICATION).packString("cancel").packArrayHeader(1).packInt(id));
    }

    private static ByteBuffer frame(Params message) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            message.pack(packer);
            byte[] body = packer.toByteArray();
            return ByteBuffer.allocate(HEADER_BYTES + body.length).putInt(body.length).put(body).flip();
        } catch (IOException impossible) { // it writes to memory
            throw new UncheckedIOException(impossible);
        }
    }

    /**
     * Reads one answer.
     *
     * @throws DaemonException it is none, so whatever is at the other end is not the daemon
     */
    static Answer answer(byte[] body) throws DaemonException {
        try (MessageUnpacker skimmer = MessagePack.newDefaultUnpacker(body);
             MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(body)) {
            skimmer.skipValue(); // an array that announces more than the frame holds is not made room for
            ArrayValue message = unpacker.unpackValue().asArrayValue();
            if (message.size() != 4 || message.get(0).asIntegerValue().asInt() != RESPONSE) {
                throw DaemonException.garbled("an answer was expected");
            }
            int id = message.get(1).asIntegerValue().asInt();
            Value error = message.get(2);
            return error.isNilValue()
                ? new Answer(id, null, message.get(3))
                : new Answer(id, error(error.asArrayValue()), null);
        } catch (IOException | RuntimeException broken) { // msgpack's own are of both kinds
            throw DaemonException.garbled(broken.toString());
        } catch (StackOverflowError nested) { // values in values are read by recursion
            throw DaemonException.garbled("values nested without end");
        }
    }

    private static DaemonException error(ArrayValue body) {
        Map<String, Object> fields = new HashMap<>();
        if (body.size() > 3) {
            body.get(3).asMapValue().map().forEach((key, value) ->
                fields.put(key.toString(), value.isBooleanValue() ? value.asBooleanValue().getBoolean() : value.toString()));
        }
        return DaemonException.answered(
            body.get(0).asIntegerValue().asInt(), body.get(1).toString(), body.get(2).toString(), fields);
    }

    static void pack(MessagePacker packer, TopicIdPartition partition) throws IOException {
        packer.packArrayHeader(3);
        pack(packer, uuid(partition.topicId()));
        packer.packString(partition.topic()).packInt(partition.partition());
    }

    static void pack(MessagePacker packer, Collection<TopicIdPartition> partitions) throws IOException {
        packer.packArrayHeader(partitions.size());
        for (TopicIdPartition partition : partitions) {
            pack(packer, partition);
        }
    }

    static void pack(MessagePacker packer, byte[] bytes) throws IOException {
        packer.packBinaryHeader(bytes.length).writePayload(bytes);
    }

    static void packOrNil(MessagePacker packer, String text) throws IOException {
        if (text == null) {
            packer.packNil();
        } else {
            packer.packString(text);
        }
    }

    private static byte[] uuid(Uuid id) {
        return ByteBuffer.allocate(16)
            .putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).array();
    }
}
