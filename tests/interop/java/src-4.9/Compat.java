import java.util.HashSet;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What 4.9 calls differently. */
class Compat {
    static void timer(Message message, String kind, long value) {
        message.putUserProperty(kind.equals("sec") ? "TIMER_DELAY_SEC" : kind.equals("ms") ? "TIMER_DELAY_MS" : "TIMER_DELIVER_MS", "" + value);
    }

    static void mqadmin() { throw new UnsupportedOperationException("mqadmin of 4.9 knows no users"); }

    static String recallHandle(SendResult result) { return null; }

    static String recall(DefaultMQProducer producer, String topic, String handle) { throw new UnsupportedOperationException("4.9 recalls nothing"); }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void pop(DefaultMQPushConsumer consumer, long invisibleMs) {
        throw new UnsupportedOperationException("4.9 clients do not pop");
    }

    static void popInOrder(DefaultMQPullConsumer consumer, String topic, int count, long invisibleMs, int failEvery, int failTimes) {
        throw new UnsupportedOperationException("4.9 clients do not pop");
    }

    static void setMode(DefaultMQAdminExt admin, String broker, String topic, String group, String mode, int share) {
        throw new UnsupportedOperationException("4.9 has no modes");
    }

    static void createGroup(DefaultMQAdminExt admin, String broker, String group, int retryMaxTimes, String retryPolicy) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(retryMaxTimes);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    static String retryPolicy(DefaultMQAdminExt admin, String broker, String group) {
        return "";   // 4.9 knows none
    }

    static Map<String, TopicConfig> topicConfigs(DefaultMQAdminExt admin, String broker) throws Exception {
        return new TreeMap<>(admin.getUserTopicConfig(broker, false, 5000).getTopicConfigTable());
    }

    static void deleteTopicInNameServer(DefaultMQAdminExt admin, String topic) throws Exception {
        admin.deleteTopicInNameServer(new HashSet<>(admin.getNameServerAddressList()), topic, null);
    }
}
