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
    /** Likewise of the header in front of a bulk answer, or an error in its place. */
    static final int HEADER_FRAME_BYTES_MAX = 1024 * 1024;
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

    /**
     * One answer: an error, or the result, which lies in the body from a place on and is whole. It is read where it is
     * used, so that what needs no {@link Value} does not load the forty classes of those.
     */
    record Answer(int id, DaemonException error, byte[] body, int resultAt) {
        /** Reads the result piece by piece; throws MessagePackException where it is another than expected. */
        MessageUnpacker unpacker() {
            return MessagePack.newDefaultUnpacker(body, resultAt, body.length - resultAt);
        }

        /** The result, whatever it is. */
        Value result() throws DaemonException {
            return value(body, resultAt);
        }

        /** Whether the result is {@code true}. */
        boolean isYes() {
            return body[resultAt] == MessagePack.Code.TRUE;
        }

        /** Of a page of a listing, {@code [records, more]}: whether another one follows. */
        boolean hasMore() throws IOException {
            try (MessageUnpacker page = unpacker()) {
                page.unpackArrayHeader();
                page.skipValue();
                return page.unpackBoolean();
            }
        }
    }

    static ByteBuffer request(int id, String method, Params params) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(REQUEST).packInt(id).packString(method);
            params.pack(packer);
            return frame(packer.toByteArray());
        } catch (IOException impossible) { // it writes to memory
            throw new UncheckedIOException(impossible);
        }
    }

    static ByteBuffer cancel(int id) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(3).packInt(NOTIFICATION).packString("cancel").packArrayHeader(1).packInt(id);
            return frame(packer.toByteArray());
        } catch (IOException impossible) { // as above
            throw new UncheckedIOException(impossible);
        }
    }

    private static ByteBuffer frame(byte[] body) {
        return ByteBuffer.allocate(HEADER_BYTES + body.length).putInt(body.length).put(body).flip();
    }

    /**
     * Reads one answer.
     *
     * @throws DaemonException it is none, so whatever is at the other end is not the daemon
     */
    static Answer answer(byte[] body) throws DaemonException {
        try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(body)) {
            if (unpacker.unpackArrayHeader() != 4 || unpacker.unpackInt() != RESPONSE) {
                throw DaemonException.garbled("an answer was expected");
            }
            int id = unpacker.unpackInt();
            int errorAt = at(unpacker);
            unpacker.skipValue();
            int resultAt = at(unpacker);
            unpacker.skipValue(); // an array that announces more than the frame holds is not made room for later
            return new Answer(id, error(body, errorAt), body, resultAt);
        } catch (IOException | RuntimeException broken) { // msgpack's own are of both kinds
            throw DaemonException.garbled(broken.toString());
        }
    }

    private static int at(MessageUnpacker unpacker) {
        return (int) unpacker.getTotalReadBytes();
    }

    /** What is known to be whole. */
    private static Value value(byte[] body, int at) throws DaemonException {
        try (MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(body, at, body.length - at)) {
            return unpacker.unpackValue();
        } catch (IOException | RuntimeException broken) { // as above
            throw DaemonException.garbled(broken.toString());
        } catch (StackOverflowError nested) { // values in values are read by recursion
            throw DaemonException.garbled("values nested without end");
        }
    }

    private static DaemonException error(byte[] body, int at) throws DaemonException {
        return body[at] == MessagePack.Code.NIL ? null : error(value(body, at).asArrayValue());
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

    static String unpackOrNil(MessageUnpacker unpacker) throws IOException {
        return unpacker.tryUnpackNil() ? null : unpacker.unpackString();
    }

    private static byte[] uuid(Uuid id) {
        return ByteBuffer.allocate(16)
            .putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).array();
    }
}
