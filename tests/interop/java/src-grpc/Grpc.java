import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * Grpc ENDPOINTS COMMAND key=value...    Apache's Java client for RocketMQ 5; prints one JSON object a line.
 *
 * send      topic= n= [run= size= threads= groups= deliver_at= priority=]    tls=false turns TLS off, for each command; access_key= and secret_key= sign
 * transact  topic= n= [run=]      halves: of each four one is committed, one rolled back, and two are left to the checks, which
 *                                 commit one of them; until standard input ends
 * recall    topic= handle=        takes a delayed message back
 * push, simple     consume, see Consuming
 * admin     does nothing: build.sh runs it, to keep the loaded classes
 */
public class Grpc {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Map<String, String> options = new HashMap<>();
    static String endpoints;

    static String text(String name, String otherwise) { return options.getOrDefault(name, otherwise); }
    static int number(String name, int otherwise) { return Integer.parseInt(text(name, "" + otherwise)); }

    public static void main(String[] args) throws Exception {
        try {
            run(args);
        } catch (Exception cause) {
            cause.printStackTrace();
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);   // threads of the client may take seconds to end
    }

    static void run(String[] args) throws Exception {
        options.clear();
        endpoints = args[0];
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        switch (args[1]) {
            case "send": send(); break;
            case "transact": transact(); break;
            case "recall": recall(); break;
            case "push": Consuming.push(); break;
            case "simple": Consuming.simple(); break;
            case "admin": break;
            default: throw new IllegalArgumentException(args[1]);
        }
    }

    static ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .enableSsl(!text("tls", "true").equals("false")).setRequestTimeout(Duration.ofSeconds(30));
        if (options.containsKey("access_key")) builder.setCredentialProvider(new StaticSessionCredentialsProvider(text("access_key", ""), text("secret_key", "")));
        return builder.build();
    }

    static ProducerBuilder producer() {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(text("topic", ""));
    }

    static Message message(int i) {
        String run = text("run", "r");
        StringBuilder body = new StringBuilder(run + "-" + i + "-");
        while (body.length() < number("size", 100)) body.append((char) ('a' + (i + body.length()) % 26));
        MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(text("topic", "")).setTag("Tag" + (char) ('A' + i % 5))
            .setKeys(run + "key" + i).setBody(body.toString().getBytes(StandardCharsets.UTF_8)).addProperty("number", "" + i);
        if (options.containsKey("groups")) message.setMessageGroup("group" + i % number("groups", 1));
        if (options.containsKey("deliver_at")) message.setDeliveryTimestamp(Long.parseLong(text("deliver_at", "")));
        if (options.containsKey("priority")) message.setPriority(number("priority", 0));
        return message.build();
    }

    static void send() throws Exception {
        int n = number("n", 1), threads = number("threads", 1);
        Producer producer = producer().build();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> all = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            int first = t;
            all.add(pool.submit(() -> {
                for (int i = first; i < n; i += threads) {
                    Message message = message(i);
                    try {
                        SendReceipt receipt = producer.send(message);
                        Json.print("key", message.getKeys().iterator().next(), "id", receipt.getMessageId().toString(), "handle", receipt.getRecallHandle());
                    } catch (ClientException cause) {
                        Json.print("error", String.valueOf(cause), "key", message.getKeys().iterator().next());
                    }
                }
            }));
        }
        for (Future<?> one : all) one.get();
        pool.shutdown();
        producer.close();
    }

    static void transact() throws Exception {
        Producer producer = producer().setTransactionChecker(view -> {
            int number = Integer.parseInt(view.getProperties().get("number"));
            Json.print("asked", view.getKeys().iterator().next(), "topic", view.getTopic(), "body", StandardCharsets.UTF_8.decode(view.getBody()).toString());
            return number % 4 == 2 ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        }).build();
        for (int i = 0; i < number("n", 4); i++) {
            Message message = message(i);
            Transaction transaction = producer.beginTransaction();
            SendReceipt receipt = producer.send(message, transaction);
            String state = i % 4 == 0 ? "commit" : i % 4 == 1 ? "rollback" : "unknown";
            if (i % 4 == 0) transaction.commit();
            if (i % 4 == 1) transaction.rollback();
            Json.print("key", message.getKeys().iterator().next(), "id", receipt.getMessageId().toString(), "state", state);
        }
        Json.print("sent", number("n", 4));
        while (System.in.read() >= 0) { }
        producer.close();
    }

    static void recall() throws Exception {
        Producer producer = producer().build();
        Json.print("recalled", producer.recallMessage(text("topic", ""), text("handle", "")).getMessageId().toString());
        producer.close();
    }
}
