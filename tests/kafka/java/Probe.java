import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;

/**
 * What tests ask of Kafka's own classes: one JSON request a line on standard input, one JSON answer a
 * line on standard output. `Probe BOOTSTRAP`; ends when its input does.
 */
public final class Probe {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final long SECONDS = 60;

    private final String bootstrap;
    private final Traffic traffic;
    private Admin admin;
    private final RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
    private KafkaProducer<byte[], byte[]> producer;
    private TopicBasedRemoteLogMetadataManager manager;

    private Probe(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "request.timeout.ms", 5000));
        this.traffic = new Traffic(bootstrap, admin);
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // whatever a library prints is no answer
        var probe = new Probe(args[0]);
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                JsonNode ask = MAPPER.readTree(line);
                if (ask.has("via")) {
                    probe.handleVia(ask, answer);
                } else {
                    probe.handle(ask, answer);
                }
            } catch (Exception error) {
                Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
                answer.put("error", cause.getClass().getSimpleName()).put("message", String.valueOf(cause.getMessage()));
            }
            out.println(MAPPER.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0); // a manager's threads are no daemons
    }

    /** Asks over connections made for it: one of earlier may lead to a broker that is frozen by now, for a minute. */
    private void handleVia(JsonNode ask, ObjectNode answer) throws Exception {
        Admin lasting = admin;
        var settings = Map.<String, Object>of("bootstrap.servers", ask.get("via").asText(), "request.timeout.ms", 1500, "default.api.timeout.ms", 3000);
        try (Admin fresh = Admin.create(settings)) {
            admin = fresh;
            handle(ask, answer);
        } finally {
            admin = lasting;
        }
    }

    private void handle(JsonNode ask, ObjectNode answer) throws Exception {
        switch (ask.get("op").asText()) {
            case "create" -> create(ask, answer);
            case "delete" -> get(admin.deleteTopics(List.of(topic(ask))).all());
            case "grow" -> get(admin.createPartitions(Map.of(topic(ask), NewPartitions.increaseTo(ask.get("count").asInt()))).all());
            case "delete_records" ->
                get(admin.deleteRecords(Map.of(partition(ask), RecordsToDelete.beforeOffset(ask.get("before").asLong()))).all());
            case "config" -> config(ask);
            case "describe" -> describe(ask, answer);
            case "place" -> {
                var replicas = new ArrayList<Integer>();
                ask.get("replicas").forEach(each -> replicas.add(each.asInt()));
                get(admin.alterPartitionReassignments(Map.of(partition(ask), Optional.of(new NewPartitionReassignment(replicas)))).all());
            }
            case "elect" -> {
                ElectionType type = ask.path("unclean").asBoolean() ? ElectionType.UNCLEAN : ElectionType.PREFERRED;
                var error = get(admin.electLeaders(type, Set.of(partition(ask))).partitions()).get(partition(ask));
                if (error.isPresent()) {
                    answer.put("election", error.get().getClass().getSimpleName());
                }
            }
            case "end" -> {
                var end = get(admin.listOffsets(Map.of(partition(ask), OffsetSpec.latest())).partitionResult(partition(ask)));
                answer.put("offset", end.offset()).put("epoch", end.leaderEpoch().orElse(-1));
            }
            case "allow" -> get(admin.createAcls(List.of(acl(ask))).all());
            case "forbid" -> get(admin.deleteAcls(List.of(acl(ask).toFilter())).all());
            case "password" -> {
                var mechanism = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
                var change = new UserScramCredentialUpsertion(ask.get("user").asText(), mechanism, ask.get("password").asText());
                get(admin.alterUserScramCredentials(List.of(change)).all());
            }
            case "produce" -> produce(ask, answer);
            case "dump" -> dump(ask, answer);
            case "reserialize" -> answer.put("hex", HEX.formatHex(serde.serialize(serde.deserialize(hex(ask)))));
            case "format" -> format(ask, answer);
            case "manager" -> startManager(ask, answer);
            case "manager_close" -> {
                manager.close();
                manager = null;
            }
            case "announce" -> manager.onPartitionLeadershipChanges(Set.of(user(ask)), Set.of());
            case "ready" -> answer.put("ready", manager.isReady(user(ask)));
            case "put" -> put(hex(ask));
            case "list" -> {
                ArrayNode rows = answer.putArray("records");
                var found = ask.has("epoch") ? manager.listRemoteLogSegments(user(ask), ask.get("epoch").asInt()) : manager.listRemoteLogSegments(user(ask));
                found.forEachRemaining(each -> rows.add(HEX.formatHex(serde.serialize(each))));
            }
            case "lookup" -> {
                var found = manager.remoteLogSegmentMetadata(user(ask), ask.get("epoch").asInt(), ask.get("offset").asLong());
                answer.put("hex", found.map(each -> HEX.formatHex(serde.serialize(each))).orElse(null));
            }
            default -> traffic.handle(ask, answer);
        }
    }

    // ---- topics --------------------------------------------------------------------------------

    private void create(JsonNode ask, ObjectNode answer) throws Exception {
        var config = new HashMap<String, String>();
        ask.path("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        NewTopic topic = ask.has("placement")
            ? new NewTopic(topic(ask), placement(ask.get("placement")))
            : new NewTopic(topic(ask), ask.get("partitions").asInt(), (short) ask.get("replicas").asInt());
        var created = admin.createTopics(List.of(topic.configs(config)));
        get(created.all());
        Bench.awaitLeaders(admin, topic(ask), get(created.numPartitions(topic(ask))));
        answer.put("id", get(created.topicId(topic(ask))).toString());
    }

    private static Map<Integer, List<Integer>> placement(JsonNode rows) {
        var placement = new HashMap<Integer, List<Integer>>();
        for (int partition = 0; partition < rows.size(); partition++) {
            var replicas = new ArrayList<Integer>();
            rows.get(partition).forEach(each -> replicas.add(each.asInt()));
            placement.put(partition, replicas);
        }
        return placement;
    }

    private void config(JsonNode ask) throws Exception {
        var operations = new ArrayList<AlterConfigOp>();
        ask.get("set").fields().forEachRemaining(each ->
            operations.add(new AlterConfigOp(new ConfigEntry(each.getKey(), each.getValue().asText()), AlterConfigOp.OpType.SET)));
        get(admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic(ask)), operations)).all());
    }

    private void describe(JsonNode ask, ObjectNode answer) throws Exception {
        var topic = get(admin.describeTopics(List.of(topic(ask))).allTopicNames()).get(topic(ask));
        answer.put("id", topic.topicId().toString());
        ArrayNode rows = answer.putArray("partitions");
        for (var each : topic.partitions()) {
            ObjectNode row = rows.addObject().put("leader", each.leader() == null ? -1 : each.leader().id());
            ArrayNode replicas = row.putArray("replicas"), isr = row.putArray("isr");
            each.replicas().forEach(node -> replicas.add(node.id()));
            each.isr().forEach(node -> isr.add(node.id()));
        }
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(ask));
        ObjectNode config = answer.putObject("config");
        get(admin.describeConfigs(List.of(resource)).all()).get(resource).entries().forEach(each -> config.put(each.name(), each.value()));
    }

    private static AclBinding acl(JsonNode ask) {
        var resource = new ResourcePattern(ResourceType.fromString(ask.get("resource").asText()), ask.get("name").asText(), PatternType.LITERAL);
        var operation = AclOperation.fromString(ask.get("operation").asText());
        return new AclBinding(resource, new AccessControlEntry(ask.get("principal").asText(), "*", operation, AclPermissionType.ALLOW));
    }

    // ---- records -------------------------------------------------------------------------------

    private void produce(JsonNode ask, ObjectNode answer) throws Exception {
        boolean transactional = ask.has("transaction");
        var settings = new HashMap<String, Object>(Map.of("bootstrap.servers", ask.path("via").asText(bootstrap), "acks", "all", "linger.ms", 5));
        if (ask.has("compression")) {
            settings.put("compression.type", ask.get("compression").asText());
        }
        if (transactional) {
            settings.put("transactional.id", "probe-" + System.nanoTime());
        }
        boolean own = transactional || ask.has("compression") || ask.has("via");
        if (!own && producer == null) {
            producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        }
        var used = own ? new KafkaProducer<byte[], byte[]>(settings, new ByteArraySerializer(), new ByteArraySerializer()) : producer;
        try {
            if (transactional) {
                used.initTransactions();
                used.beginTransaction();
            }
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (JsonNode value : ask.get("values")) {
                byte[] bytes = value.isNull() ? null : HEX.parseHex(value.asText());
                sent.add(used.send(new ProducerRecord<>(topic(ask), ask.get("partition").asInt(), null, bytes)));
            }
            used.flush();
            ArrayNode offsets = answer.putArray("offsets");
            for (var each : sent) {
                offsets.add(each.get(SECONDS, TimeUnit.SECONDS).offset());
            }
            if (transactional && ask.get("transaction").asText().equals("commit")) {
                used.commitTransaction();
            } else if (transactional) {
                used.abortTransaction();
            }
        } finally {
            if (own) {
                used.close();
            }
        }
    }

    private void dump(JsonNode ask, ObjectNode answer) throws Exception {
        try (var consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", bootstrap), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic(ask)).stream().map(each -> new TopicPartition(each.topic(), each.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            ArrayNode rows = answer.putArray("records");
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    ObjectNode row = rows.addObject().put("partition", record.partition()).put("offset", record.offset());
                    row.put("hex", record.value() == null ? null : HEX.formatHex(record.value()));
                    row.put("key", record.key() == null ? null : HEX.formatHex(record.key()));
                    row.put("headers", record.headers().toArray().length);
                }
            }
        }
    }

    private void format(JsonNode ask, ObjectNode answer) {
        var written = new ByteArrayOutputStream();
        try (var formatter = new RemoteLogMetadataSerde.RemoteLogMetadataFormatter()) {
            formatter.configure(Map.of());
            var record = new ConsumerRecord<byte[], byte[]>("topic", ask.get("partition").asInt(), ask.get("offset").asLong(), null, hex(ask));
            formatter.writeTo(record, new PrintStream(written));
        }
        answer.put("text", written.toString());
    }

    // ---- Kafka's own metadata manager ----------------------------------------------------------

    private void startManager(JsonNode ask, ObjectNode answer) throws Exception {
        var config = new HashMap<String, Object>();
        config.put("broker.id", 99);
        config.put("log.dir", ask.get("directory").asText());
        config.put("remote.log.metadata.common.client.bootstrap.servers", bootstrap);
        config.put("remote.log.metadata.topic.num.partitions", ask.get("count").asInt());
        config.put("remote.log.metadata.topic.replication.factor", (short) ask.get("replicas").asInt());
        config.put("remote.log.metadata.topic.min.isr", (short) 1);
        config.put("remote.log.metadata.consume.wait.ms", ask.path("wait_ms").asLong(30_000));
        manager = new TopicBasedRemoteLogMetadataManager();
        manager.configure(config);
        manager.onBrokerReady();
        manager.onPartitionLeadershipChanges(Set.of(user(ask)), Set.of());
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!manager.isReady(user(ask))) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("Kafka's metadata manager does not get ready");
            }
            Thread.sleep(20);
        }
        answer.put("ready", true);
    }

    private void put(byte[] value) throws Exception {
        var event = serde.deserialize(value);
        var done = event instanceof RemoteLogSegmentMetadata added ? manager.addRemoteLogSegmentMetadata(added)
            : event instanceof RemoteLogSegmentMetadataUpdate update ? manager.updateRemoteLogSegmentMetadata(update)
            : manager.putRemotePartitionDeleteMetadata((RemotePartitionDeleteMetadata) event);
        done.get(SECONDS, TimeUnit.SECONDS);
    }

    // ---- requests ------------------------------------------------------------------------------

    private static <T> T get(Future<T> future) throws Exception {
        return future.get(SECONDS, TimeUnit.SECONDS);
    }

    private static String topic(JsonNode ask) {
        return ask.get("topic").asText();
    }

    private static TopicPartition partition(JsonNode ask) {
        return new TopicPartition(topic(ask), ask.get("partition").asInt());
    }

    private static TopicIdPartition user(JsonNode ask) {
        JsonNode user = ask.get("user");
        return new TopicIdPartition(Uuid.fromString(user.get(0).asText()), user.get(2).asInt(), user.get(1).asText());
    }

    private static byte[] hex(JsonNode ask) {
        return HEX.parseHex(ask.get("hex").asText());
    }
}
