import java.util.HashSet;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.CustomizedRetryPolicy;
import org.apache.rocketmq.remoting.protocol.subscription.ExponentialRetryPolicy;
import org.apache.rocketmq.remoting.protocol.subscription.GroupRetryPolicyType;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What 5.x calls differently. */
class Compat {
    static void timer(Message message, String kind, long value) {
        if (kind.equals("sec")) message.setDelayTimeSec(value);
        else if (kind.equals("ms")) message.setDelayTimeMs(value);
        else message.setDeliverTimeMs(value);
    }

    static void mqadmin() throws Exception { Mqadmin.run(); }

    static String recallHandle(SendResult result) { return result.getRecallHandle(); }

    static String recall(DefaultMQProducer producer, String topic, String handle) throws Exception { return producer.recallMessage(topic, handle); }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void pop(DefaultMQPushConsumer consumer, long invisibleMs) {
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(invisibleMs);
    }

    static void popInOrder(DefaultMQPullConsumer consumer, String topic, int count, long invisibleMs, int failEvery, int failTimes) throws Exception {
        new PopInOrder(consumer, topic).run(count, invisibleMs, failEvery, failTimes);
    }

    static void setMode(DefaultMQAdminExt admin, String broker, String topic, String group, String mode, int share) throws Exception {
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.valueOf(mode), share, 5000);
    }

    static void createGroup(DefaultMQAdminExt admin, String broker, String group, int retryMaxTimes, String retryPolicy) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(retryMaxTimes);
        if (!retryPolicy.isEmpty()) {
            config.getGroupRetryPolicy().setType(GroupRetryPolicyType.valueOf(retryPolicy));
            config.getGroupRetryPolicy().setExponentialRetryPolicy(new ExponentialRetryPolicy(3000, 60000, 3));
            config.getGroupRetryPolicy().setCustomizedRetryPolicy(new CustomizedRetryPolicy(new long[]{1000, 7000}));
        }
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    static String retryPolicy(DefaultMQAdminExt admin, String broker, String group) throws Exception {
        return String.valueOf(admin.examineSubscriptionGroupConfig(broker, group).getGroupRetryPolicy());
    }

    static Map<String, TopicConfig> topicConfigs(DefaultMQAdminExt admin, String broker) throws Exception {
        return new TreeMap<>(admin.getUserTopicConfig(broker, false, 5000).getTopicConfigTable());
    }

    static void deleteTopicInNameServer(DefaultMQAdminExt admin, String topic) throws Exception {
        admin.deleteTopicInNameServer(new HashSet<>(admin.getNameServerAddressList()), topic);
    }
}
