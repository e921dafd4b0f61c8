import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Requests that wait for a reply, and a consumer that replies "re: " and the body. */
class Replies {
    static void ask(DefaultMQProducer producer, String topic, int n, long timeoutMs) throws Exception {
        for (int i = 0; i < n; i++) {
            Message reply = producer.request(new Message(topic, ("java-" + i).getBytes(StandardCharsets.UTF_8)), timeoutMs);
            Json.print("reply", new String(reply.getBody(), StandardCharsets.UTF_8));
        }
        producer.shutdown();
    }

    static void answer(String nameserver, DefaultMQProducer producer, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Interop.hook(), new AllocateMessageQueueAveragely());
        Interop.connect(consumer, nameserver);
        consumer.setInstanceName("r" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message, ("re: " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8));
                    Json.print("status", sent(producer, reply).getSendStatus().name());
                } catch (Exception cause) {
                    Json.print("error", String.valueOf(cause));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Json.print("ready", true);
        while (System.in.read() >= 0) { }
        consumer.shutdown();
        producer.shutdown();
    }

    /** A Go client asks before it has told the broker who it is, and until then no reply reaches it. */
    private static SendResult sent(DefaultMQProducer producer, Message reply) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                return producer.send(reply, 5000);
            } catch (MQClientException | MQBrokerException cause) {
                if (tries == 50) throw cause;
                Thread.sleep(100);
            }
        }
    }
}
