import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** Sends three messages to the topic Tour and receives them, with Apache's Java client for RocketMQ 5: mvn -q -f docs/examples/java-grpc compile exec:exec */
public class TourGrpc {
    static final String TOPIC = "Tour", GROUP = "tour-java-grpc";

    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).build();
        Set<String> own = ConcurrentHashMap.newKeySet();

        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(TOPIC).build();
        for (int number = 0; number < 3; number++) {
            byte[] body = ("hello " + number + " from gRPC").getBytes(StandardCharsets.UTF_8);
            Message message = provider.newMessageBuilder().setTopic(TOPIC).setTag("grpc").setKeys("grpc-" + number).setBody(body).build();
            SendReceipt receipt = producer.send(message);
            System.out.println("sent      " + receipt.getMessageId());
            own.add(receipt.getMessageId().toString());
        }
        producer.close();

        CountDownLatch allHere = new CountDownLatch(1);
        PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(GROUP)
            .setSubscriptionExpressions(Collections.singletonMap(TOPIC, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                System.out.printf("received  '%s', attempt %d%n", body, message.getDeliveryAttempt());
                own.remove(message.getMessageId().toString());
                if (own.isEmpty()) allHere.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        boolean inTime = allHere.await(60, TimeUnit.SECONDS);
        consumer.close();
        System.exit(inTime ? 0 : 1);
    }
}
