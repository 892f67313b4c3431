import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.TreeMap;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.server.log.remote.metadata.storage.generated.MetadataJsonConverters;
import org.apache.kafka.server.log.remote.metadata.storage.generated.MetadataRecordType;

/**
 * Renders a value of `__remote_log_metadata` as the JSON of `rlmm decode`.
 *
 * Kafka's generated converters give names, nesting and base64; three things are added, because they
 * are ours: the type envelope, `txnIndexEmpty` also when it has its default (Kafka leaves a tagged
 * field with its default out), and ascending epochs, the last of a repeated epoch winning (what
 * RemoteLogSegmentMetadata's TreeMap makes of them).
 */
final class RecordJson {
    static final ObjectMapper MAPPER = new ObjectMapper();
    static final HexFormat HEX = HexFormat.of();

    private RecordJson() {}

    static ObjectNode of(byte[] value) {
        var in = new ByteBufferAccessor(ByteBuffer.wrap(value));
        in.readUnsignedVarint(); // frame version
        short apiKey = (short) in.readUnsignedVarint();
        short version = (short) in.readUnsignedVarint();
        ApiMessage record = MetadataRecordType.fromId(apiKey).newMetadataRecord();
        record.read(in, version);

        ObjectNode data = (ObjectNode) MetadataJsonConverters.writeJson(record, version);
        if (apiKey == 0 || apiKey == 3) {
            var byEpoch = new TreeMap<Integer, JsonNode>();
            data.get("segmentLeaderEpochs").forEach(e -> byEpoch.put(e.get("leaderEpoch").intValue(), e));
            data.putArray("segmentLeaderEpochs").addAll(byEpoch.values());
            boolean empty = data.has("txnIndexEmpty") && data.get("txnIndexEmpty").booleanValue();
            data.put("txnIndexEmpty", empty);
        }
        ObjectNode out = MAPPER.createObjectNode();
        out.put("type", record.getClass().getSimpleName());
        out.put("version", (int) version);
        out.set("data", data);
        return out;
    }
}
