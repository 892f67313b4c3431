import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.storage.internals.log.TransactionIndex;

/**
 * Takes what Kafka tiered: `segments DATA OUT` copies the files and writes manifest.json and
 * lookups.jsonl from the answers of a TopicBasedRemoteLogMetadataManager; `metadata OUT` dumps
 * `__remote_log_metadata`.
 */
public final class Collect {
    private static final String METADATA_TOPIC = "__remote_log_metadata";
    private static final int METADATA_PARTITIONS = 5;
    private static final List<String> SUFFIXES =
        List.of(".log", ".index", ".timeindex", ".snapshot", ".txnindex", ".leader_epoch_checkpoint");

    private final String bootstrap;

    private Collect(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        var collect = new Collect(args[0]);
        switch (args[1]) {
            case "segments" -> collect.segments(Path.of(args[2]), Path.of(args[3]));
            case "metadata" -> collect.metadata(Path.of(args[2]));
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.exit(0); // the manager's threads are no daemons
    }

    // ---- segments ------------------------------------------------------------------------------

    private void segments(Path data, Path out) throws Exception {
        List<TopicIdPartition> partitions = partitions();
        try (var manager = manager(data, partitions); var lookups = new PrintWriter(Files.newBufferedWriter(out.resolve("lookups.jsonl")))) {
            ObjectNode manifest = RecordJson.MAPPER.createObjectNode();
            manifest.put("kafkaVersion", org.apache.kafka.common.utils.AppInfoParser.getVersion());
            manifest.put("metadataPartitions", METADATA_PARTITIONS);
            ArrayNode list = manifest.putArray("partitions");
            for (var partition : partitions) {
                list.add(partition(manager, partition, data, out, lookups));
            }
            RecordJson.MAPPER.writerWithDefaultPrettyPrinter().writeValue(out.resolve("manifest.json").toFile(), manifest);
            Files.writeString(out.resolve("manifest.json"), Files.readString(out.resolve("manifest.json")) + "\n");
        }
    }

    private List<TopicIdPartition> partitions() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Uuid id = admin.describeTopics(List.of(Produce.ORDERS)).allTopicNames().get().get(Produce.ORDERS).topicId();
            return List.of(
                new TopicIdPartition(id, new TopicPartition(Produce.ORDERS, 0)),
                new TopicIdPartition(id, new TopicPartition(Produce.ORDERS, 1)));
        }
    }

    private TopicBasedRemoteLogMetadataManager manager(Path data, List<TopicIdPartition> partitions) throws Exception {
        var manager = new TopicBasedRemoteLogMetadataManager();
        var config = new HashMap<String, Object>();
        config.put("broker.id", 9);
        config.put("log.dir", data.resolve("log").toString());
        config.put("remote.log.metadata.common.client.bootstrap.servers", bootstrap);
        config.put("remote.log.metadata.topic.num.partitions", METADATA_PARTITIONS);
        config.put("remote.log.metadata.topic.replication.factor", (short) 1);
        config.put("remote.log.metadata.topic.min.isr", (short) 1);
        manager.configure(config);
        manager.onBrokerReady();
        manager.onPartitionLeadershipChanges(Set.copyOf(partitions), Set.of());
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!partitions.stream().allMatch(manager::isReady)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the metadata manager does not get ready");
            }
            Thread.sleep(50);
        }
        return manager;
    }

    private static ObjectNode partition(TopicBasedRemoteLogMetadataManager manager, TopicIdPartition partition,
                                        Path data, Path out, PrintWriter lookups) throws Exception {
        var segments = new ArrayList<RemoteLogSegmentMetadata>();
        manager.listRemoteLogSegments(partition).forEachRemaining(segments::add);
        segments.sort(Comparator.comparingLong(RemoteLogSegmentMetadata::startOffset));

        Path from = data.resolve("remote/kafka-tiered-storage").resolve(partition.topicPartition() + "-" + partition.topicId());
        Path to = Files.createDirectories(out.resolve(partition.topicPartition().toString()));
        ObjectNode node = RecordJson.MAPPER.createObjectNode();
        node.put("topic", partition.topic()).put("topicId", partition.topicId().toString());
        node.put("partition", partition.partition());
        node.put("activeSegmentBaseOffset", Produce.activeBaseOffset(data.resolve("log"), partition.topicPartition()));
        ArrayNode list = node.putArray("segments");
        for (var segment : segments) {
            list.add(segment(segment, from, to));
        }
        lookups(manager, partition, segments, lookups);
        return node;
    }

    private static ObjectNode segment(RemoteLogSegmentMetadata metadata, Path from, Path to) throws Exception {
        ObjectNode node = RecordJson.MAPPER.createObjectNode();
        node.put("segmentId", metadata.remoteLogSegmentId().id().toString());
        node.put("startOffset", metadata.startOffset()).put("endOffset", metadata.endOffset());
        ObjectNode epochs = node.putObject("segmentLeaderEpochs");
        metadata.segmentLeaderEpochs().forEach((epoch, offset) -> epochs.put(Integer.toString(epoch), offset));
        node.put("maxTimestampMs", metadata.maxTimestampMs());
        node.put("segmentSizeInBytes", metadata.segmentSizeInBytes());
        node.put("txnIndexEmpty", metadata.isTxnIdxEmpty());
        node.put("brokerId", metadata.brokerId());
        node.put("eventTimestampMs", metadata.eventTimestampMs());
        node.put("state", metadata.state().name());

        String remote = String.format("%020d-%s", metadata.startOffset(), metadata.remoteLogSegmentId().id());
        String local = String.format("%020d", metadata.startOffset());
        ObjectNode files = node.putObject("files");
        for (String suffix : SUFFIXES) {
            Path source = from.resolve(remote + suffix);
            if (Files.exists(source)) {
                Path target = to.resolve(local + suffix);
                Files.copy(source, target, StandardCopyOption.REPLACE_EXISTING);
                files.putObject(suffix).put("size", Files.size(target)).put("sha256", sha256(target));
            }
        }
        node.set("contents", contents(metadata, to.resolve(local + ".log"), to.resolve(local + ".txnindex")));
        return node;
    }

    private static ObjectNode contents(RemoteLogSegmentMetadata metadata, Path log, Path txnIndex) throws IOException {
        ObjectNode node = RecordJson.MAPPER.createObjectNode();
        var codecs = new TreeMap<String, Integer>();
        var epochs = new TreeMap<Integer, Integer>();
        int batches = 0, records = 0, transactional = 0, control = 0;
        try (FileRecords file = FileRecords.open(log.toFile(), false)) {
            for (FileLogInputStream.FileChannelRecordBatch batch : file.batches()) {
                batch.ensureValid();
                batches++;
                records += batch.countOrNull();
                transactional += batch.isTransactional() ? 1 : 0;
                control += batch.isControlBatch() ? 1 : 0;
                codecs.merge(batch.compressionType().name, 1, Integer::sum);
                epochs.merge(batch.partitionLeaderEpoch(), 1, Integer::sum);
            }
        }
        node.put("batches", batches).put("records", records);
        node.put("transactionalBatches", transactional).put("controlBatches", control);
        node.set("batchesByCodec", RecordJson.MAPPER.valueToTree(codecs));
        node.set("batchesByLeaderEpoch", RecordJson.MAPPER.valueToTree(epochs));
        ArrayNode aborted = node.putArray("abortedTransactions");
        if (Files.exists(txnIndex)) {
            try (var index = new TransactionIndex(metadata.startOffset(), txnIndex.toFile())) {
                index.sanityCheck();
                index.allAbortedTxns().forEach(txn -> aborted.addObject()
                    .put("producerId", txn.producerId()).put("firstOffset", txn.firstOffset())
                    .put("lastOffset", txn.lastOffset()).put("lastStableOffset", txn.lastStableOffset()));
            }
        }
        return node;
    }

    private static String sha256(Path file) throws Exception {
        return RecordJson.HEX.formatHex(MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file)));
    }

    // ---- lookups: Kafka's answers, at every edge -----------------------------------------------

    private static void lookups(TopicBasedRemoteLogMetadataManager manager, TopicIdPartition partition,
                                List<RemoteLogSegmentMetadata> segments, PrintWriter out) throws RemoteStorageException {
        var epochs = new TreeSet<Integer>();
        var offsets = new TreeSet<Long>();
        for (var segment : segments) {
            for (var entry : segment.segmentLeaderEpochs().entrySet()) {
                epochs.add(entry.getKey());
                offsets.addAll(List.of(Math.max(0, entry.getValue() - 1), entry.getValue(), entry.getValue() + 1));
            }
            offsets.addAll(List.of(segment.startOffset(), segment.endOffset(), segment.endOffset() + 1,
                (segment.startOffset() + segment.endOffset()) / 2));
        }
        epochs.addAll(List.of(epochs.first() + 1, epochs.last() + 1)); // two that hold nothing
        for (int epoch : epochs) {
            ObjectNode line = line(partition, "highestOffsetForEpoch", epoch);
            out.println(line.put("result", manager.highestOffsetForEpoch(partition, epoch).orElse(null)));
            ObjectNode listing = line(partition, "listRemoteLogSegments", epoch);
            ArrayNode ids = listing.putArray("result");
            manager.listRemoteLogSegments(partition, epoch).forEachRemaining(s -> ids.add(s.remoteLogSegmentId().id().toString()));
            out.println(listing);
            for (long offset : offsets) {
                answer(out, line(partition, "remoteLogSegmentMetadata", epoch), offset,
                    manager.remoteLogSegmentMetadata(partition, epoch, offset));
                answer(out, line(partition, "nextSegmentWithTxnIndex", epoch), offset,
                    manager.nextSegmentWithTxnIndex(partition, epoch, offset));
            }
        }
    }

    private static ObjectNode line(TopicIdPartition partition, String call, int epoch) {
        return RecordJson.MAPPER.createObjectNode().put("call", call).put("partition", partition.partition()).put("epoch", epoch);
    }

    private static void answer(PrintWriter out, ObjectNode line, long offset, Optional<RemoteLogSegmentMetadata> found) {
        line.put("offset", offset);
        out.println(line.put("result", found.map(s -> s.remoteLogSegmentId().id().toString()).orElse(null)));
    }

    // ---- metadata.jsonl ------------------------------------------------------------------------

    private void metadata(Path out) throws IOException {
        var config = Map.<String, Object>of("bootstrap.servers", bootstrap, "enable.auto.commit", false, "auto.offset.reset", "earliest");
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var partitions = consumer.partitionsFor(METADATA_TOPIC).stream().map(p -> new TopicPartition(METADATA_TOPIC, p.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            }
        }
        records.sort(Comparator.<ConsumerRecord<byte[], byte[]>>comparingInt(ConsumerRecord::partition).thenComparingLong(ConsumerRecord::offset));
        try (var writer = new PrintWriter(Files.newBufferedWriter(out.resolve("metadata.jsonl")))) {
            for (var record : records) {
                if (record.key() != null || record.headers().iterator().hasNext()) {
                    throw new IllegalStateException("Kafka writes neither keys nor headers here, yet " + record);
                }
                ObjectNode line = RecordJson.MAPPER.createObjectNode();
                line.put("partition", record.partition()).put("offset", record.offset()).put("timestampMs", record.timestamp());
                line.put("hex", RecordJson.HEX.formatHex(record.value()));
                line.set("json", RecordJson.of(record.value()));
                writer.println(line);
            }
        }
    }
}
