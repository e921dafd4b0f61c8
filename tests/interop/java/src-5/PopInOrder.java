import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Pops in order, with the client's own calls: the push consumer of 5.5.0 pulls for an orderly listener. */
class PopInOrder {
    static final int POLL_MS = 2_000, LIMIT_MS = 10_000, AGAIN_MS = 500;

    private final String group, topic, broker, address;
    private final MQClientAPIImpl api;

    PopInOrder(DefaultMQPullConsumer consumer, String topic) throws Exception {
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        this.group = consumer.getConsumerGroup();
        this.topic = topic;
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        this.broker = queues.iterator().next().getBrokerName();
        client.updateTopicRouteInfoFromNameServer(topic);
        this.address = client.findBrokerAddressInPublish(broker);
        this.api = client.getMQClientAPIImpl();
    }

    /** Consume until `count` messages were acknowledged. A message fails `failTimes` times; then those after it in its queue come again too. */
    void run(int count, long invisibleMs, int failEvery, int failTimes) throws Exception {
        for (int acked = 0, seen = 0; acked < count; ) {
            Set<Integer> stopped = new HashSet<>();
            for (MessageExt message : pop(invisibleMs)) {
                boolean fails = failEvery > 0 && message.getReconsumeTimes() < failTimes && ++seen % failEvery == 0;
                if (stopped.contains(message.getQueueId()) || fails) {
                    if (stopped.add(message.getQueueId())) Interop.received(message, "failed", true);
                    changeInvisibleTime(message);
                } else {
                    Interop.received(message);
                    acknowledge(message);
                    acked++;
                }
            }
        }
    }

    private List<MessageExt> pop(long invisibleMs) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(8);
        header.setInvisibleTime(invisibleMs);
        header.setPollTime(POLL_MS);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(true);
        header.setAttemptId(UUID.randomUUID().toString());
        CompletableFuture<PopResult> popped = new CompletableFuture<>();
        api.popMessageAsync(broker, address, header, LIMIT_MS, new PopCallback() {
            public void onSuccess(PopResult result) { popped.complete(result); }
            public void onException(Throwable cause) { popped.completeExceptionally(cause); }
        });
        List<MessageExt> found = popped.get().getMsgFoundList();
        return found == null ? List.of() : found;
    }

    private void acknowledge(MessageExt message) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        Answer answer = new Answer();
        api.ackMessageAsync(address, LIMIT_MS, answer, header);
        answer.await();
    }

    private void changeInvisibleTime(MessageExt message) throws Exception {
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        header.setInvisibleTime((long) AGAIN_MS);
        Answer answer = new Answer();
        api.changeInvisibleTimeAsync(broker, address, header, LIMIT_MS, answer);
        answer.await();
    }

    private static class Answer implements AckCallback {
        private final CompletableFuture<AckResult> result = new CompletableFuture<>();

        public void onSuccess(AckResult answer) { result.complete(answer); }
        public void onException(Throwable cause) { result.completeExceptionally(cause); }

        void await() throws Exception {
            if (result.get().getStatus() != AckStatus.OK) throw new IllegalStateException("refused: " + result.get());
        }
    }
}
