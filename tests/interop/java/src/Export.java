import java.util.*;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The calls that Apache's Prometheus exporter (rocketmq-exporter) makes in one round of all its tasks; one row for each. */
class Export {
    private static final int SYSTEM_ERROR = 1, TOPIC_NOT_EXIST = 17, CONSUMER_NOT_ONLINE = 206;
    private static final List<String> WHOLE = List.of("msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning", "msgGetTotalTodayMorning", "msgPutTotalYesterdayMorning",
        "msgGetTotalYesterdayMorning", "sendThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize",
        "queryThreadPoolQueueSize", "pullThreadPoolQueueSize", "sendThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "bootTimestamp", "commitLogMinOffset",
        "commitLogMaxOffset", "dispatchMaxBuffer", "brokerVersion", "pageCacheLockTimeMills", "getMessageEntireTimeMax", "putMessageTimesTotal", "startAcceptSendRequestTimeStamp",
        "putMessageEntireTimeMax", "earliestMessageTimeStamp", "remainTransientStoreBufferNumbs", "dispatchBehindBytes", "putMessageSizeTotal");
    private static final List<String> BROKEN = List.of("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize");
    private static final List<String> RATES = List.of("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps");

    interface Call { Object answer() throws Exception; }

    private final DefaultMQAdminExt admin;
    private final DefaultMQPullConsumer reader = new DefaultMQPullConsumer("TOOLS_CONSUMER");
    private final List<Object> rows = new ArrayList<>();

    private Export(DefaultMQAdminExt admin) { this.admin = admin; }

    static List<Object> run(DefaultMQAdminExt admin, String nameserver) throws Exception {
        Export one = new Export(admin);
        Interop.connect(one.reader, nameserver);
        one.reader.start();
        try {
            one.topics();
            one.brokers();
        } finally {
            one.reader.shutdown();
        }
        return one.rows;
    }

    /** A row with the answer; codes in `tolerated` are those that the exporter passes over. */
    private void note(String call, String of, Call made, Integer... tolerated) {
        Map<String, Object> row = new TreeMap<>(Map.of("call", call, "of", of));
        try {
            row.put("answer", String.valueOf(made.answer()));
        } catch (Exception cause) {
            int code = cause instanceof MQClientException ? ((MQClientException) cause).getResponseCode() : cause instanceof MQBrokerException ? ((MQBrokerException) cause).getResponseCode() : 0;
            row.put(Arrays.asList(tolerated).contains(code) ? "tolerated" : "error", String.valueOf(cause));
        }
        rows.add(row);
    }

    private void topics() throws Exception {
        for (String topic : new TreeSet<>(admin.fetchAllTopicList().getTopicList())) {
            note("examineTopicStats", topic, () -> admin.examineTopicStats(topic).getOffsetTable().values().stream().mapToLong(o -> o.getMaxOffset()).sum());
            if (topic.startsWith("%DLQ%")) continue;
            Collection<String> groups = new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList());
            note("queryTopicConsumeByWho", topic, () -> groups);
            for (String group : groups) lag(topic, group);
            if (topic.startsWith("%RETRY%")) continue;
            for (var broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
                String address = broker.getBrokerAddrs().get(0L);
                for (String name : List.of("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")) rate(address, name, topic);
                for (String group : groups) for (String name : List.of("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS")) rate(address, name, topic + "@" + group);
            }
        }
    }

    private void lag(String topic, String group) throws Exception {
        String of = topic + "@" + group;
        note("examineConsumerConnectionInfo", of, () -> admin.examineConsumerConnectionInfo(group).getConnectionSet().size(), TOPIC_NOT_EXIST, CONSUMER_NOT_ONLINE);
        note("getConsumerRunningInfo", of, () -> {
            for (var connection : admin.examineConsumerConnectionInfo(group).getConnectionSet()) admin.getConsumerRunningInfo(group, connection.getClientId(), false).getStatusTable().size();
            return "";
        }, TOPIC_NOT_EXIST, CONSUMER_NOT_ONLINE);
        note("examineConsumeStats", of, () -> {
            var stats = admin.examineConsumeStats(group, topic);
            for (var entry : stats.getOffsetTable().entrySet()) pull(entry.getKey(), entry.getValue().getConsumerOffset());
            return stats.computeTotalDiff() + " " + stats.getConsumeTps();
        }, TOPIC_NOT_EXIST, CONSUMER_NOT_ONLINE);
    }

    private void pull(MessageQueue queue, long offset) {
        note("queryMsgByOffset", queue.getTopic() + " " + queue.getQueueId(), () -> {
            var found = reader.pull(queue, "*", offset, 1);
            return found.getPullStatus().name().equals("OFFSET_ILLEGAL") ? reader.pull(queue, "*", found.getMinOffset(), 1).getPullStatus() : found.getPullStatus();
        });
    }

    private void rate(String broker, String name, String key) {
        note(name, key, () -> admin.viewBrokerStatsData(broker, name, key).getStatsMinute().getTps(), SYSTEM_ERROR);
    }

    private void brokers() throws Exception {
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            String address = broker.getBrokerAddrs().get(0L);
            note("getAllProducerInfo", broker.getBrokerName(), () -> new TreeSet<>(admin.getAllProducerInfo(address).getData().keySet()));
            for (String name : List.of("BROKER_PUT_NUMS", "BROKER_GET_NUMS")) rate(address, name, broker.getCluster());
            note("fetchBrokerRuntimeStats", broker.getBrokerName(), () -> read(admin.fetchBrokerRuntimeStats(address).getTable()));
        }
    }

    /** Reads each value as the exporter does; what it cannot read raises. */
    private static int read(Map<String, String> table) {
        for (String name : WHOLE) Long.parseLong(table.get(name));
        for (String name : BROKEN) Double.parseDouble(table.get(name));
        for (String name : RATES) for (String piece : table.get(name).split(" ")) Double.parseDouble(piece);
        for (String piece : table.get("putMessageDistributeTime").split(" ")) Integer.parseInt(piece.split(":")[1]);
        for (var entry : table.entrySet()) if (entry.getKey().startsWith("scheduleMessageOffset")) for (String piece : entry.getValue().split(",", 2)) Long.parseLong(piece);
        String[] left = table.get("remainHowManyDataToFlush").split(" "), disk = table.get("commitLogDirCapacity").split(" ");
        Double.parseDouble(left[0]);
        if (left[1].isEmpty()) throw new IllegalArgumentException("no unit: " + table.get("remainHowManyDataToFlush"));
        for (int number : new int[]{2, 6}) Double.parseDouble(disk[number]);
        for (int unit : new int[]{3, 7}) disk[unit].substring(0, disk[unit].length() - 1);
        Objects.requireNonNull(table.get("runtime"));
        Objects.requireNonNull(table.get("brokerVersionDesc"));
        return table.size();
    }
}
