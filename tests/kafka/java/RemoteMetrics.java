import com.yammer.metrics.core.MetricName;
import java.lang.reflect.Field;
import java.util.TreeSet;
import org.apache.kafka.server.log.remote.storage.RemoteStorageMetrics;
import org.apache.kafka.server.metrics.KafkaYammerMetrics;

/** Prints the MBeans by which a broker tells of its tier, a line each. */
public final class RemoteMetrics {
    private static final String[] WAITING = {"DelayedRemoteFetch", "DelayedRemoteListOffsets"};

    public static void main(String[] args) throws Exception {
        TreeSet<String> found = new TreeSet<>();
        for (Field field : RemoteStorageMetrics.class.getFields()) {
            if (field.getType() == MetricName.class) {
                found.add(((MetricName) field.get(null)).getMBeanName());
            }
        }
        for (String each : WAITING) { // they register theirs when they are loaded
            Class.forName("org.apache.kafka.server.purgatory." + each);
        }
        KafkaYammerMetrics.defaultRegistry().allMetrics().keySet().forEach(each -> found.add(each.getMBeanName()));
        found.forEach(System.out::println);
    }
}
