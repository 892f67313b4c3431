import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.common.metadata.MetadataJsonConverters;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Kafka's own classes of the records of `__cluster_metadata`, a line of JSON in and one out:
 * `{"types": true}` lists every type, `{"key", "version", "fields"}` packs a record (without fields: as it is by
 * default), `{"hex"}` reads one.
 */
public final class ClusterRecords {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final MetadataRecordSerde SERDE = new MetadataRecordSerde();

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            var ask = JSON.readTree(line);
            var answer = JSON.createObjectNode();
            if (ask.has("types")) {
                var types = answer.putArray("types");
                for (var type : MetadataRecordType.values()) {
                    types.addObject().put("name", type.name()).put("key", type.id()).put("newest", type.highestSupportedVersion());
                }
            } else if (ask.has("hex")) {
                byte[] bytes = HexFormat.of().parseHex(ask.get("hex").asText());
                var read = SERDE.read(new ByteBufferAccessor(java.nio.ByteBuffer.wrap(bytes)), bytes.length);
                answer.put("key", read.message().apiKey()).put("version", read.version());
                answer.set("fields", MetadataJsonConverters.writeJson(read.message(), read.version()));
            } else {
                short key = (short) ask.get("key").asInt(), version = (short) ask.get("version").asInt();
                var message = ask.has("fields")
                    ? MetadataJsonConverters.readJson(ask.get("fields"), key, version)
                    : MetadataRecordType.fromId(key).newMetadataRecord();
                answer.put("hex", HexFormat.of().formatHex(packed(new ApiMessageAndVersion(message, version))));
            }
            System.out.println(answer);
        }
    }

    private static byte[] packed(ApiMessageAndVersion record) {
        var cache = new ObjectSerializationCache();
        var out = new ByteBufferAccessor(java.nio.ByteBuffer.allocate(SERDE.recordSize(record, cache)));
        SERDE.write(record, cache, out);
        return out.buffer().array();
    }
}
