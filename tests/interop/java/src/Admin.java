import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Apache's own admin client, one command a line of standard input, one JSON object a line of output; fields between tabs. */
class Admin {
    static void run(String nameserver) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Interop.hook(), Interop.TIMEOUT_MS);
        Interop.connect(admin, nameserver);
        admin.setInstanceName("a" + System.nanoTime());
        admin.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\t");
            try {
                answer(admin, nameserver, words);
            } catch (Exception cause) {
                Json.print("command", words[0], "error", String.valueOf(cause));
            }
        }
        admin.shutdown();
    }

    private static String broker(DefaultMQAdminExt admin) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
    }

    private static Map<String, Object> queueKey(MessageQueue queue) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", queue.getTopic());
        fields.put("queue", queue.getQueueId());
        fields.put("broker", queue.getBrokerName());
        return fields;
    }

    private static Map<String, Object> topic(TopicConfig config) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", config.getTopicName());
        fields.put("read_queues", config.getReadQueueNums());
        fields.put("write_queues", config.getWriteQueueNums());
        fields.put("perm", config.getPerm());
        fields.put("order", config.isOrder());
        return fields;
    }

    private static void answer(DefaultMQAdminExt admin, String nameserver, String[] words) throws Exception {
        String command = words[0];
        List<Object> rows = new ArrayList<>();
        switch (command) {
            case "cluster": {
                var info = admin.examineBrokerClusterInfo();
                for (var data : info.getBrokerAddrTable().values()) rows.add(Map.of("cluster", data.getCluster(), "broker", data.getBrokerName(), "addresses", new TreeMap<>(data.getBrokerAddrs())));
                break;
            }
            case "set_mode": Compat.setMode(admin, broker(admin), words[1], words[2], words[3], Integer.parseInt(words[4])); break;
            case "runtime": rows.add(new TreeMap<>(admin.fetchBrokerRuntimeStats(broker(admin)).getTable())); break;
            case "broker_config": rows.add(new TreeMap<>(admin.getBrokerConfig(broker(admin)))); break;
            case "topics": rows.addAll(new TreeSet<>(admin.fetchAllTopicList().getTopicList())); break;
            case "topic_configs": for (TopicConfig config : Compat.topicConfigs(admin, broker(admin)).values()) rows.add(topic(config)); break;
            case "topic_config": rows.add(topic(admin.examineTopicConfig(broker(admin), words[1]))); break;
            case "topic_route":
                for (var data : admin.examineTopicRouteInfo(words[1]).getQueueDatas())
                    rows.add(Map.of("broker", data.getBrokerName(), "read_queues", data.getReadQueueNums(), "write_queues", data.getWriteQueueNums(), "perm", data.getPerm()));
                break;
            case "topic_stats":
                for (var entry : new TreeMap<>(admin.examineTopicStats(words[1]).getOffsetTable()).entrySet()) {
                    Map<String, Object> row = queueKey(entry.getKey());
                    row.put("min", entry.getValue().getMinOffset());
                    row.put("max", entry.getValue().getMaxOffset());
                    row.put("updated_ms", entry.getValue().getLastUpdateTimestamp());
                    rows.add(row);
                }
                break;
            case "create_topic": {   // topic, read queues, write queues, permission
                TopicConfig config = new TopicConfig(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]));
                admin.createAndUpdateTopicConfig(broker(admin), config);
                break;
            }
            case "delete_topic":
                admin.deleteTopicInBroker(Set.of(broker(admin)), words[1]);
                Compat.deleteTopicInNameServer(admin, words[1]);
                break;
            case "groups": rows.addAll(new TreeSet<>(admin.getAllSubscriptionGroup(broker(admin), 5000).getSubscriptionGroupTable().keySet())); break;
            case "create_group": Compat.createGroup(admin, broker(admin), words[1], Integer.parseInt(words[2]), words.length > 3 ? words[3] : ""); break;   // group, tries, [retry policy]
            case "retry_policy": rows.add(Compat.retryPolicy(admin, broker(admin), words[1])); break;
            case "group_config": {
                var config = admin.examineSubscriptionGroupConfig(broker(admin), words[1]);
                rows.add(Map.of("group", config.getGroupName(), "retry_max_times", config.getRetryMaxTimes(), "consume_enable", config.isConsumeEnable()));
                break;
            }
            case "delete_group": admin.deleteSubscriptionGroup(broker(admin), words[1], true); break;
            case "consume_stats": {   // group, [topic]
                var stats = words.length > 2 ? admin.examineConsumeStats(words[1], words[2]) : admin.examineConsumeStats(words[1]);
                for (var entry : new TreeMap<>(stats.getOffsetTable()).entrySet()) {
                    Map<String, Object> row = queueKey(entry.getKey());
                    row.put("broker_offset", entry.getValue().getBrokerOffset());
                    row.put("consumer_offset", entry.getValue().getConsumerOffset());
                    row.put("last_ms", entry.getValue().getLastTimestamp());
                    rows.add(row);
                }
                break;
            }
            case "consumers":
                for (var connection : admin.examineConsumerConnectionInfo(words[1]).getConnectionSet())
                    rows.add(Map.of("client", connection.getClientId(), "address", connection.getClientAddr(), "language", connection.getLanguage().name(), "version", connection.getVersion()));
                break;
            case "producers":   // group, topic
                for (var connection : admin.examineProducerConnectionInfo(words[1], words[2]).getConnectionSet())
                    rows.add(Map.of("client", connection.getClientId(), "address", connection.getClientAddr(), "language", connection.getLanguage().name(), "version", connection.getVersion()));
                break;
            case "groups_of_topic": rows.addAll(new TreeSet<>(admin.queryTopicConsumeByWho(words[1]).getGroupList())); break;
            case "reset_offset": {   // group, topic, time in ms
                var table = admin.resetOffsetByTimestamp(words[2], words[1], Long.parseLong(words[3]), true);
                for (var entry : new TreeMap<>(table).entrySet()) {
                    Map<String, Object> row = queueKey(entry.getKey());
                    row.put("offset", entry.getValue());
                    rows.add(row);
                }
                break;
            }
            case "export": rows.addAll(Export.run(admin, nameserver)); break;
            case "consumer_connection": {   // group: what `mqadmin consumerConnection` shows
                var found = admin.examineConsumerConnectionInfo(words[1]);
                Map<String, Object> row = new TreeMap<>();
                row.put("type", found.getConsumeType().name());
                row.put("model", found.getMessageModel().name());
                row.put("from", found.getConsumeFromWhere().name());
                for (var entry : found.getSubscriptionTable().entrySet()) {
                    var one = entry.getValue();
                    row.put("subscription " + entry.getKey(), one.getTopic() + " " + one.getSubString() + " " + one.getExpressionType() + " " + new TreeSet<>(one.getTagsSet()) + " " + new TreeSet<>(one.getCodeSet()) + " " + one.isClassFilterMode());
                }
                for (var one : found.getConnectionSet()) row.put("client " + one.getLanguage().name() + " " + one.getVersion(), one.getClientAddr().split(":").length);
                rows.add(row);
                break;
            }
            case "producer_connection":   // group, topic: what `mqadmin producerConnection` shows
                for (var one : admin.examineProducerConnectionInfo(words[1], words[2]).getConnectionSet())
                    rows.add(Map.of("language", one.getLanguage().name(), "version", one.getVersion(), "address", one.getClientAddr().split(":").length));
                break;
            case "message": {   // topic, id: what `mqadmin queryMsgById` shows
                var one = admin.viewMessage(words[1], words[2]);
                Map<String, Object> row = new TreeMap<>(one.getProperties());
                row.put("topic", one.getTopic());
                row.put("tags", String.valueOf(one.getTags()));
                row.put("keys", String.valueOf(one.getKeys()));
                row.put("queue", one.getQueueId());
                row.put("queue_offset", one.getQueueOffset());
                row.put("log_offset", one.getCommitLogOffset());
                row.put("store_size", one.getStoreSize());
                row.put("tries", one.getReconsumeTimes());
                row.put("flags", one.getFlag() + " " + one.getSysFlag());
                row.put("body_crc", one.getBodyCRC());
                row.put("body", new String(one.getBody()));
                row.put("is_offset_id", one.getMsgId().equals(one.getProperty("UNIQ_KEY")));
                for (var track : admin.messageTrackDetail(one)) row.put("track " + track.getConsumerGroup(), String.valueOf(track.getTrackType()) + " " + track.getExceptionDesc());
                rows.add(row);
                break;
            }
            case "put_kv": admin.createAndUpdateKvConfig(words[1], words[2], words[3]); break;
            case "get_kv": rows.add(admin.getKVConfig(words[1], words[2])); break;
            default: throw new IllegalArgumentException(command);
        }
        Json.print("command", command, "rows", rows);
    }
}
