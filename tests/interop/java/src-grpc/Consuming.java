import java.time.Duration;
import java.util.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * The commands of Grpc that consume. Each prints {"ready": true}, then a line for each message, until standard input ends.
 *
 * push      group= topic= [expression= sql=true fails=n]     the first `fails` tries of each message fail
 * simple    group= topic= [expression= sql=true invisible_s= keep=true]     keep: acknowledges nothing
 */
class Consuming {
    static FilterExpression expression() {
        FilterExpressionType type = Grpc.text("sql", "").isEmpty() ? FilterExpressionType.TAG : FilterExpressionType.SQL92;
        return new FilterExpression(Grpc.text("expression", "*"), type);
    }

    static void show(MessageView view) {
        Json.print("key", view.getKeys().isEmpty() ? null : view.getKeys().iterator().next(), "id", view.getMessageId().toString(),
            "size", view.getBody().remaining(), "tag", view.getTag().orElse(null),
            "group", view.getMessageGroup().orElse(null), "attempt", view.getDeliveryAttempt(), "properties", view.getProperties(),
            "at_ms", System.currentTimeMillis());
    }

    static void push() throws Exception {
        int fails = Grpc.number("fails", 0);
        PushConsumer consumer = Grpc.PROVIDER.newPushConsumerBuilder().setClientConfiguration(Grpc.configuration())
            .setConsumerGroup(Grpc.text("group", "")).setSubscriptionExpressions(Map.of(Grpc.text("topic", ""), expression()))
            .setMessageListener(view -> {
                show(view);
                return view.getDeliveryAttempt() <= fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        Json.print("ready", true);
        while (System.in.read() >= 0) { }
        consumer.close();
    }

    static void simple() throws Exception {
        SimpleConsumer consumer = Grpc.PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(Grpc.configuration())
            .setConsumerGroup(Grpc.text("group", "")).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(Grpc.text("topic", ""), expression())).build();
        Thread receiver = new Thread(() -> {
            while (true) {
                try {
                    for (MessageView view : consumer.receive(16, Duration.ofSeconds(Grpc.number("invisible_s", 15)))) {
                        if (Grpc.text("keep", "").isEmpty()) consumer.ack(view);
                        show(view);
                    }
                } catch (ClientException cause) {
                    Json.print("error", String.valueOf(cause));
                }
            }
        });
        receiver.setDaemon(true);
        receiver.start();
        Json.print("ready", true);
        while (System.in.read() >= 0) { }
        consumer.close();
    }
}
