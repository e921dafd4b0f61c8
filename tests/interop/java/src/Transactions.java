import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

/** Halves whose fate follows from their number: 0 commit, 1 roll back, 2 not known and committed when asked, 3 not known and rolled back when asked. */
class Transactions implements TransactionListener {
    private static int fate(String number) { return Integer.parseInt(number) % 4; }

    static void run(String nameserver, String group, int n, java.util.function.IntFunction<Message> message) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group, Interop.hook());
        Interop.connect(producer, nameserver);
        producer.setInstanceName("t" + System.nanoTime());
        producer.setTransactionListener(new Transactions());
        producer.start();
        Json.print("ready", true);
        for (int i = 0; i < n; i++) {
            Message one = message.apply(i);
            TransactionSendResult result = producer.sendMessageInTransaction(one, null);
            Json.print("key", one.getKeys(), "fate", i % 4, "status", result.getSendStatus().name(), "state", result.getLocalTransactionState().name(), "transaction", result.getTransactionId());
        }
        Json.print("sent", n);
        while (System.in.read() >= 0) { }   // questions come meanwhile
        producer.shutdown();
    }

    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        int fate = fate(message.getUserProperty("number"));
        return fate == 0 ? LocalTransactionState.COMMIT_MESSAGE : fate == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int fate = fate(message.getUserProperty("number"));
        Json.print("asked", message.getKeys(), "fate", fate, "topic", message.getTopic(), "queue", message.getQueueId(), "transaction", message.getTransactionId());
        return fate == 2 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }
}
