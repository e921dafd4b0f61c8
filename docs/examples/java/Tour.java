import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends three messages to the topic Tour and receives them, with Apache's own client: mvn -q -f docs/examples/java compile exec:exec */
public class Tour {
    static final String TOPIC = "Tour", GROUP = "tour-java";

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        Set<String> own = ConcurrentHashMap.newKeySet();

        DefaultMQProducer producer = new DefaultMQProducer("tour-java-sender");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        for (int number = 0; number < 3; number++) {
            byte[] body = ("hello " + number + " from Java").getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(TOPIC, "java", "java-" + number, body));
            System.out.printf("sent      %s to queue %d at %d%n", result.getSendStatus(), result.getMessageQueue().getQueueId(), result.getQueueOffset());
            own.add(result.getMsgId());
        }
        producer.shutdown();

        CountDownLatch allHere = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.printf("received  '%s' from queue %d at %d%n", body, message.getQueueId(), message.getQueueOffset());
                own.remove(message.getMsgId());
            });
            if (own.isEmpty()) allHere.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean inTime = allHere.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        System.exit(inTime ? 0 : 1);
    }
}
