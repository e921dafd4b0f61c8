import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * OpenStore DIR key=value...    opens a store directory in Apache's DefaultMessageStore and prints what it finds, one JSON object a line.
 * Keys are properties of MessageStoreConfig (mappedFileSizeCommitLog, mappedFileSizeConsumeQueue, maxHashSlotNum, maxIndexNum).
 * Standard input: one key lookup a line, topic and key between a tab, answered by the log offsets found.
 */
public class OpenStore {
    public static void main(String[] args) {
        try {
            open(args);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        } catch (Throwable cause) {   // a store that failed half way leaves threads behind that would keep the process
            System.err.println(cause);
            Runtime.getRuntime().halt(1);
        }
    }

    private static void open(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setHaListenPort(0);
        config.setDuplicationEnable(false);
        config.setTimerWheelEnable(false);
        Properties properties = new Properties();
        for (int i = 1; i < args.length; i++) properties.setProperty(args[i].split("=")[0], args[i].split("=")[1]);
        MixAll.properties2Object(properties, config);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("interop", true), (t, q, o, g, s, b, p) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        boolean loaded = store.load();
        store.start();
        while (store.getReputFromOffset() < store.getMaxPhyOffset()) Thread.sleep(1);
        Json.print("loaded", loaded, "min_log_offset", store.getMinPhyOffset(), "max_log_offset", store.getMaxPhyOffset());
        for (var topic : new TreeMap<>(store.getQueueStore().getConsumeQueueTable()).entrySet())
            for (int queue : new TreeSet<>(topic.getValue().keySet())) messages(store, topic.getKey(), queue);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) lookup(store, line.split("\t"));
        store.shutdown();
    }

    private static void messages(DefaultMessageStore store, String topic, int queue) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queue), end = store.getMaxOffsetInQueue(topic, queue);
        Json.print("topic", topic, "queue", queue, "min", offset, "max", end);
        while (offset < end) {
            GetMessageResult result = store.getMessage("interop", topic, queue, offset, 32, null);
            if (result.getStatus() != GetMessageStatus.FOUND) { Json.print("error", result.toString(), "topic", topic, "queue", queue, "offset", offset); return; }
            for (var buffer : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer.duplicate(), true);
                Json.print("topic", message.getTopic(), "queue", message.getQueueId(), "offset", message.getQueueOffset(), "log_offset", message.getCommitLogOffset(),
                    "store_time", message.getStoreTimestamp(), "key", message.getKeys(), "tag", message.getTags(), "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "id", message.getProperty("UNIQ_KEY"));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private static void lookup(DefaultMessageStore store, String[] words) throws Exception {
        QueryMessageResult result = store.queryMessage(words[0], words[1], 64, 0, Long.MAX_VALUE);
        TreeSet<Long> found = new TreeSet<>();
        for (var buffer : result.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(buffer.duplicate(), true);
            if (message.getTopic().equals(words[0]) && message.getKeys() != null && List.of(message.getKeys().split(" ")).contains(words[1])) found.add(message.getCommitLogOffset());
        }
        result.release();
        Json.print("lookup", words[1], "topic", words[0], "log_offsets", found);
    }
}
