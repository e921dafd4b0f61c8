import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * OpenStore DIR... key=value...    opens store directories in Apache's DefaultMessageStore, one after the other, and prints what it finds, one JSON object a line.
 * Keys are properties of MessageStoreConfig (mappedFileSizeCommitLog, mappedFileSizeConsumeQueue, maxHashSlotNum, maxIndexNum).
 * digests=true: a queue is one line, and of its messages the log offsets and SHA-256 of record and body; without it each message is one.
 * Standard input: one key lookup a line, topic and key between a tab, answered by the log offsets found; an empty line goes on to the next store.
 * A body that is empty is null.
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
        List<String> stores = new ArrayList<>();
        Properties properties = new Properties();
        for (String word : args)
            if (word.contains("=")) properties.setProperty(word.split("=")[0], word.split("=")[1]);
            else stores.add(word);
        boolean digests = properties.remove("digests") != null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        List<Thread> closing = new ArrayList<>();
        for (String directory : stores) {
            DefaultMessageStore store = look(directory, properties, digests, lines);
            closing.add(new Thread(store::shutdown));   // which waits for seconds
            closing.get(closing.size() - 1).start();
        }
        for (Thread thread : closing) thread.join();
    }

    private static DefaultMessageStore look(String directory, Properties properties, boolean digests, BufferedReader lines) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + File.separator + "commitlog");
        config.setHaListenPort(0);
        config.setDuplicationEnable(false);
        config.setTimerWheelEnable(false);
        MixAll.properties2Object(properties, config);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("interop", true), (t, q, o, g, s, b, p) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        boolean loaded = store.load();
        store.start();
        while (store.getReputFromOffset() < store.getMaxPhyOffset()) Thread.sleep(1);
        Json.print("store", directory, "loaded", loaded, "min_log_offset", store.getMinPhyOffset(), "max_log_offset", store.getMaxPhyOffset());
        for (var topic : new TreeMap<>(store.getQueueStore().getConsumeQueueTable()).entrySet())
            for (int queue : new TreeSet<>(topic.getValue().keySet()))
                if (digests) digests(store, topic.getKey(), queue);
                else messages(store, topic.getKey(), queue);
        for (String line; (line = lines.readLine()) != null && !line.isEmpty(); ) lookup(store, line.split("\t"));
        return store;
    }

    private interface Visitor {
        void message(ByteBuffer record, MessageExt decoded) throws Exception;
    }

    private static void messages(DefaultMessageStore store, String topic, int queue) throws Exception {
        Json.print("topic", topic, "queue", queue, "min", store.getMinOffsetInQueue(topic, queue), "max", store.getMaxOffsetInQueue(topic, queue));
        read(store, topic, queue, (record, message) -> {
            byte[] body = message.getBody();
            Json.print("topic", message.getTopic(), "queue", message.getQueueId(), "offset", message.getQueueOffset(), "log_offset", message.getCommitLogOffset(),
                "store_time", message.getStoreTimestamp(), "key", message.getKeys(), "tag", message.getTags(), "body", body == null ? null : new String(body, StandardCharsets.UTF_8),
                "id", message.getProperty("UNIQ_KEY"));
        });
    }

    private static void digests(DefaultMessageStore store, String topic, int queue) throws Exception {
        List<Object> offsets = new ArrayList<>(), logOffsets = new ArrayList<>(), records = new ArrayList<>(), bodies = new ArrayList<>();
        read(store, topic, queue, (record, message) -> {
            byte[] bytes = new byte[record.remaining()];
            record.get(bytes);
            offsets.add(message.getQueueOffset());
            logOffsets.add(message.getCommitLogOffset());
            records.add(digest(bytes));
            bodies.add(message.getBody() == null ? null : digest(message.getBody()));
        });
        Json.print("topic", topic, "queue", queue, "min", store.getMinOffsetInQueue(topic, queue), "max", store.getMaxOffsetInQueue(topic, queue),
            "offsets", offsets, "log_offsets", logOffsets, "records", records, "bodies", bodies);
    }

    private static String digest(byte[] bytes) throws Exception {
        return Base64.getEncoder().encodeToString(MessageDigest.getInstance("SHA-256").digest(bytes));
    }

    private static void read(DefaultMessageStore store, String topic, int queue, Visitor visitor) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queue), end = store.getMaxOffsetInQueue(topic, queue);
        while (offset < end) {
            GetMessageResult result = store.getMessage("interop", topic, queue, offset, 32, null);
            if (result.getStatus() != GetMessageStatus.FOUND) { Json.print("error", result.toString(), "topic", topic, "queue", queue, "offset", offset); return; }
            for (var buffer : result.getMessageBufferList()) visitor.message(buffer.duplicate(), MessageDecoder.decode(buffer.duplicate(), true));
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
