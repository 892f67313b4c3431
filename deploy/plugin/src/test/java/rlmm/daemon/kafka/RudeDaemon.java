package rlmm.daemon.kafka;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;

import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.value.ArrayValue;

/** Says hello as a daemon does, and then answers with whatever it was told to. A real one cannot be made to. */
final class RudeDaemon implements AutoCloseable {
    /** What is written for a request with this id, length and all. */
    @FunctionalInterface
    interface Answering {
        byte[] to(int id) throws IOException;
    }

    private static final int PIECE_BYTES = 64 * 1024;
    private final Path directory = Files.createTempDirectory("rude");
    private final ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    private volatile Answering rudely;
    private volatile String method;
    private final Set<SocketChannel> channels = ConcurrentHashMap.newKeySet();
    /** What hello says of the log; null says nothing, as earlier daemons do. */
    volatile String eventLog = "kafka";
    /** The methods that were asked for, hello among them, over all connections. */
    final Queue<String> asked = new ConcurrentLinkedQueue<>();
    /** The parameters of what was last answered rudely. */
    volatile ArrayValue params;

    RudeDaemon() throws IOException {
        server.bind(UnixDomainSocketAddress.of(socket()));
        spawn(this::accept);
    }

    Path socket() {
        return directory.resolve("s");
    }

    /** Of a manager for it; `more` goes before. */
    Map<String, Object> configs(Map<String, Object> more) {
        Map<String, Object> configs = new HashMap<>(Map.of(PluginConfig.BROKER_ID, 9, PluginConfig.CLUSTER_ID, "rude",
            PluginConfig.SOCKET_PATH, socket().toString(), PluginConfig.SINGLE_BROKER_CHECK, "false"));
        configs.putAll(more);
        return configs;
    }

    /** Answers this method so from now on; null is polite again. */
    void answer(String rudelyAnswered, Answering answering) {
        method = rudelyAnswered;
        rudely = answering;
    }

    /** Ends every connection; new ones are taken. */
    void hangUp() throws IOException {
        for (SocketChannel channel : channels) {
            channel.close();
        }
    }

    private void accept() {
        try {
            while (true) {
                SocketChannel channel = server.accept();
                spawn(() -> serve(channel));
            }
        } catch (IOException closed) {
            return;
        }
    }

    private void serve(SocketChannel channel) {
        channels.add(channel);
        try (channel; DataInputStream in = new DataInputStream(Channels.newInputStream(channel))) {
            while (true) {
                byte[] body = in.readNBytes(in.readInt());
                ArrayValue request;
                try (var unpacker = MessagePack.newDefaultUnpacker(body)) {
                    request = unpacker.unpackValue().asArrayValue();
                }
                if (request.get(0).asIntegerValue().asInt() == 0) {
                    byte[] answer = answerTo(request);
                    for (int at = 0; at < answer.length;) { // the JVM keeps a buffer of the largest write of each thread
                        at += channel.write(ByteBuffer.wrap(answer, at, Math.min(PIECE_BYTES, answer.length - at)));
                    }
                }
            }
        } catch (EOFException left) {
            return;
        } catch (IOException cut) {
            return;
        }
    }

    private byte[] answerTo(ArrayValue request) throws IOException {
        int id = request.get(1).asIntegerValue().asInt();
        String wanted = request.get(2).asStringValue().asString();
        asked.add(wanted);
        if (wanted.equals("hello")) {
            String log = eventLog;
            return answer(id, packer -> {
                packer.packArrayHeader(log == null ? 5 : 6).packInt(1).packString("rude").packNil().packNil()
                    .packArrayHeader(2).packString("read").packString("write");
                if (log != null) {
                    packer.packString(log);
                }
            });
        }
        Answering answering = rudely;
        if (answering != null && wanted.equals(method)) {
            params = request.get(3).asArrayValue();
            return answering.to(id);
        }
        return answer(id, wanted.equals("is_ready") ? packer -> packer.packBoolean(true) : packer -> packer.packNil());
    }

    /** A well-formed answer with this result. */
    static byte[] answer(int id, Wire.Params result) throws IOException {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(1).packInt(id).packNil();
            result.pack(packer);
            return frame(packer.toByteArray());
        }
    }

    /** A well-formed refusal. */
    static byte[] error(int id, int code) throws IOException {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packArrayHeader(4).packInt(1).packInt(id);
            packer.packArrayHeader(4).packInt(code).packString("code-" + code).packString("no").packMapHeader(0);
            packer.packNil();
            return frame(packer.toByteArray());
        }
    }

    static byte[] frame(byte[] body) {
        return ByteBuffer.allocate(4 + body.length).putInt(body.length).put(body).array();
    }

    private static void spawn(Runnable task) {
        Thread thread = new Thread(task, "rude-daemon");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() throws IOException {
        server.close();
        Files.deleteIfExists(socket());
        Files.delete(directory);
    }
}
