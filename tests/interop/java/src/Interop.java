import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.acl.common.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Interop NAMESRV COMMAND key=value...    prints one JSON object a line: what was acknowledged, received or found.
 *
 * send     topics= n= [run= size= threads= mode=sync|async|batch|oneway|ordered per= until=eof pause_ms= delay=LEVEL timer=sec|ms|at:NUMBER step= trace=TOPIC]
 * consume  group= topics= [tags= n= timeout= model=clustering|broadcasting orderly= fail_every= fail_times= level= max_reconsume= pop=INVISIBLE_MS from=first|last|timestamp time= trace=TOPIC]
 * pull     topics= [group=]          every queue from its lowest offset to its highest
 * pop_in_order  topic= group= n= [invisible= fail_every= fail_times=]   until n messages are acknowledged; 5.x
 * poll     topics= group= n= [timeout=]   the lite pull consumer, which commits as it goes
 * transact topics= group= n=         halves whose fate follows from their number (see Transactions), until standard input ends
 * recall   topic= handle=             takes a timer message back
 * ask      topic= n= [timeout=]      requests, each waits for its reply
 * answer   topic= group=             replies to requests until standard input ends
 * bykey    topic= key= [max= begin= end=]
 * byid     topic= id=                an offset id or a unique id
 * offsets  topic= [time=]            lowest, highest, first at a time, of each queue
 * admin                              one command a line of standard input, fields between tabs (see Admin)
 *
 * mqadmin                            Apache's mqadmin, one command a line of standard input; 5.x
 * Each command takes access_key= and secret_key=, with which requests are signed.
 * `send until=eof`, `send trace=` and `consume` end when standard input ends; `consume` also after n messages or timeout milliseconds.
 */
public class Interop {
    static final long TIMEOUT_MS = 30_000;
    static String nameserver;
    static final Map<String, String> options = new HashMap<>();

    static String text(String name, String otherwise) { return options.getOrDefault(name, otherwise); }
    static int number(String name, int otherwise) { return Integer.parseInt(text(name, "" + otherwise)); }
    static String[] topics() { return text("topics", text("topic", "")).split(","); }

    public static void main(String[] args) throws Exception {
        try {
            run(args);
        } catch (Exception cause) {
            cause.printStackTrace();
            System.out.flush();
            Runtime.getRuntime().halt(1);   // threads of a 4.9 client that failed to start keep the process
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);   // a client's daemons may take seconds to notice
    }

    static void run(String[] args) throws Exception {
        options.clear();
        nameserver = args[0];
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        switch (args[1]) {
            case "send": send(); break;
            case "consume": consume(); break;
            case "pop_in_order": Compat.popInOrder(puller(), text("topic", ""), number("n", 1), number("invisible", 10_000), number("fail_every", 0), number("fail_times", 1)); break;
            case "pull": pull(); break;
            case "poll": poll(); break;
            case "transact": Transactions.run(nameserver, text("group", "interop_transactions"), number("n", 4), i -> message(topics(), i)); break;
            case "recall": Json.print("recalled", Compat.recall(producer(), text("topic", ""), text("handle", ""))); break;
            case "ask": Replies.ask(producer(), text("topic", ""), number("n", 1), number("timeout", 60000)); break;
            case "answer": Replies.answer(nameserver, producer(), text("group", "interop_answers"), text("topic", "")); break;
            case "bykey": byKey(); break;
            case "byid": byId(); break;
            case "offsets": offsets(); break;
            case "mqadmin": Compat.mqadmin(); break;
            case "admin": Admin.run(nameserver); break;
            default: throw new IllegalArgumentException(args[1]);
        }
    }

    /** What signs the requests, null without a key. */
    static RPCHook hook() {
        return options.containsKey("access_key") ? new AclClientRPCHook(new SessionCredentials(text("access_key", ""), text("secret_key", ""))) : null;
    }

    /** The name server to ask, and how long for: a client that has just started on a busy machine may need seconds. */
    static void connect(ClientConfig client, String nameserver) {
        client.setNamesrvAddr(nameserver);
        client.setMqClientApiTimeout((int) TIMEOUT_MS);
        if (options.containsKey("routes_ms")) client.setPollNameServerInterval(number("routes_ms", 0));
    }

    // ---- sending

    static DefaultMQProducer producer() throws Exception {
        String trace = text("trace", null);
        DefaultMQProducer producer = new DefaultMQProducer(text("producer_group", "interop_producer"), hook(), trace != null, trace);
        connect(producer, nameserver);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setSendMsgTimeout(number("send_timeout", (int) TIMEOUT_MS));
        producer.setRetryTimesWhenSendFailed(number("retries", 2));
        producer.setCompressMsgBodyOverHowmuch(number("compress_over", 4096));
        producer.setVipChannelEnabled(text("vip", "false").equals("true"));
        producer.start();
        return producer;
    }

    static Message message(String[] topics, int i) {
        String run = text("run", "r");
        StringBuilder body = new StringBuilder(run + "-" + i + "-");
        while (body.length() < number("size", 100)) body.append((char) ('a' + (i + body.length()) % 26));
        Message message = new Message(topics[i % topics.length], "Tag" + (char) ('A' + i % 5), run + "key" + i, body.toString().getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", "" + i);
        if (options.containsKey("delay")) message.setDelayTimeLevel(number("delay", 0));
        if (options.containsKey("timer")) {
            String[] timer = text("timer", "").split(":");
            Compat.timer(message, timer[0], Long.parseLong(timer[1]) + (long) i * number("step", 0));
        }
        return message;
    }

    static void acknowledged(SendResult result, List<Message> sent) {
        String[] offsetIds = result.getOffsetMsgId() == null ? new String[0] : result.getOffsetMsgId().split(",");
        String[] ids = result.getMsgId().split(",");
        for (int j = 0; j < sent.size(); j++) {
            Message message = sent.get(j);
            Json.print("topic", message.getTopic(), "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset() + j,
                "id", ids[j], "offset_id", j < offsetIds.length ? offsetIds[j] : null, "key", message.getKeys(), "tag", message.getTags(),
                "status", result.getSendStatus().name(), "broker", result.getMessageQueue().getBrokerName(), "handle", Compat.recallHandle(result), "at_ms", System.currentTimeMillis());
        }
    }

    static void failed(Message message, Throwable cause) {
        Json.print("error", String.valueOf(cause), "topic", message.getTopic(), "key", message.getKeys());
    }

    static void send() throws Exception {
        String[] topics = topics();
        String mode = text("mode", "sync");
        int n = number("n", 1), threads = number("threads", 1), per = number("per", 32), pause = number("pause_ms", 0);
        boolean untilEof = text("until", "").equals("eof");
        AtomicBoolean stop = new AtomicBoolean();
        if (untilEof) { n = Integer.MAX_VALUE; onEndOfInput(() -> stop.set(true)); }
        DefaultMQProducer producer = producer();
        Json.print("ready", true);
        AtomicInteger next = new AtomicInteger(number("first", 0));
        int end = n == Integer.MAX_VALUE ? n : n + number("first", 0);
        Semaphore window = new Semaphore(64);
        Thread[] senders = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            senders[t] = new Thread(() -> {
                while (!stop.get()) {
                    int i = next.getAndAdd(mode.equals("batch") ? per : 1);
                    if (i >= end) return;
                    Message message = message(topics, i);
                    try {
                        switch (mode) {
                            case "sync": acknowledged(producer.send(message), List.of(message)); break;
                            case "oneway": producer.sendOneway(message); break;
                            case "ordered": acknowledged(producer.send(message, (queues, m, shard) -> queues.get((Integer) shard % queues.size()), i % number("shards", 16)), List.of(message)); break;
                            case "batch":
                                List<Message> batch = new ArrayList<>();
                                for (int j = 0; j < per && i + j < end; j++) {
                                    Message one = message(topics, i + j);
                                    one.setTopic(topics[i / per % topics.length]);
                                    batch.add(one);
                                }
                                acknowledged(producer.send(batch), batch);
                                break;
                            case "async":
                                window.acquire();
                                producer.send(message, new SendCallback() {
                                    public void onSuccess(SendResult result) { acknowledged(result, List.of(message)); window.release(); }
                                    public void onException(Throwable cause) { failed(message, cause); window.release(); }
                                });
                                break;
                            default: throw new IllegalArgumentException(mode);
                        }
                        if (pause > 0) Thread.sleep(pause);
                    } catch (Exception cause) {
                        if (mode.equals("async")) window.release();
                        failed(message, cause);
                        if (untilEof) try { Thread.sleep(20); } catch (InterruptedException e) { return; }
                    }
                }
            });
            senders[t].start();
        }
        for (Thread sender : senders) sender.join();
        window.acquire(64);
        if (mode.equals("oneway")) Thread.sleep(500);   // nothing says when a oneway message has left
        if (options.containsKey("trace")) while (System.in.read() >= 0) { }   // traces leave later
        producer.shutdown();
    }

    static void onEndOfInput(Runnable then) {
        Thread reader = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (Exception ended) { }
            then.run();
        });
        reader.setDaemon(true);
        reader.start();
    }

    // ---- receiving

    static MessageSelector selector() {
        return options.containsKey("sql") ? MessageSelector.bySql(text("sql", "")) : MessageSelector.byTag(text("tags", "*"));
    }

    static void received(MessageExt message, Object... more) {
        Object[] pairs = new Object[]{"topic", message.getTopic(), "queue", message.getQueueId(), "offset", message.getQueueOffset(), "id", message.getMsgId(),
            "offset_id", ((MessageClientExt) message).getOffsetMsgId(), "key", message.getKeys(), "tag", message.getTags(),
            "body", new String(message.getBody(), StandardCharsets.UTF_8), "number", message.getUserProperty("number"), "reconsume", message.getReconsumeTimes(),
            "log_offset", message.getCommitLogOffset(), "store_time", message.getStoreTimestamp(), "born_time", message.getBornTimestamp(), "retry_topic", message.getProperty("RETRY_TOPIC")};
        Object[] all = Arrays.copyOf(pairs, pairs.length + more.length);
        System.arraycopy(more, 0, all, pairs.length, more.length);
        Json.print(all);
    }

    static void consume() throws Exception {
        String trace = text("trace", null);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(text("group", "interop_group"), hook(), new AllocateMessageQueueAveragely(), trace != null, trace);
        connect(consumer, nameserver);
        consumer.setInstanceName(text("instance", "c" + System.nanoTime()));
        switch (text("from", "first")) {
            case "last": consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET); break;
            case "timestamp": consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP); consumer.setConsumeTimestamp(text("time", "")); break;
            default: consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        }
        if (text("model", "clustering").equals("broadcasting")) Compat.broadcast(consumer);
        consumer.setMaxReconsumeTimes(number("max_reconsume", -1));
        consumer.setVipChannelEnabled(text("vip", "false").equals("true"));
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);   // so that all that was handled is committed
        for (String topic : topics()) consumer.subscribe(topic, selector());
        if (options.containsKey("pop")) Compat.pop(consumer, number("pop", 60_000));
        int failEvery = number("fail_every", 0), failTimes = number("fail_times", 1), level = number("level", 0);
        AtomicInteger left = new AtomicInteger(number("n", Integer.MAX_VALUE));
        CountDownLatch end = new CountDownLatch(1);
        AtomicInteger seen = new AtomicInteger();
        boolean orderly = text("orderly", "false").equals("true");
        if (orderly) consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                if (failEvery > 0 && message.getReconsumeTimes() < failTimes && seen.incrementAndGet() % failEvery == 0) {
                    received(message, "failed", true);
                    context.setSuspendCurrentQueueTimeMillis(100);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                received(message, "thread", Thread.currentThread().getName());
                if (left.decrementAndGet() == 0) end.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        else consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (failEvery > 0 && message.getReconsumeTimes() < failTimes && seen.incrementAndGet() % failEvery == 0) {
                    received(message, "failed", true);
                    context.setDelayLevelWhenNextConsume(level);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                received(message);
                if (left.decrementAndGet() == 0) end.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        onEndOfInput(end::countDown);
        consumer.start();
        Json.print("ready", true);
        end.await(number("timeout", 120_000), TimeUnit.MILLISECONDS);
        consumer.shutdown();
    }

    static DefaultMQPullConsumer puller() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(text("group", "interop_puller"), hook());
        connect(consumer, nameserver);
        consumer.setInstanceName("q" + System.nanoTime());
        consumer.start();
        return consumer;
    }

    static void pull() throws Exception {
        DefaultMQPullConsumer consumer = puller();
        for (String topic : topics()) for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic))) {
            long offset = consumer.minOffset(queue), end = consumer.maxOffset(queue);
            Json.print("topic", topic, "queue", queue.getQueueId(), "min", offset, "max", end);
            while (offset < end) {
                PullResult result = pulled(consumer, queue, offset);
                if (result.getPullStatus() == PullStatus.FOUND) for (MessageExt message : result.getMsgFoundList()) received(message);
                else if (result.getNextBeginOffset() <= offset) { Json.print("error", result.toString()); break; }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
    }

    /** The client pulls with an expression only when it has the broker's version, which a heartbeat brings: one at a time. */
    static PullResult pulled(DefaultMQPullConsumer consumer, MessageQueue queue, long offset) throws Exception {
        for (long end = System.currentTimeMillis() + TIMEOUT_MS; ; Thread.sleep(50)) {
            try {
                return consumer.pull(queue, selector(), offset, number("per", 32));
            } catch (MQClientException e) {
                if (!e.getMessage().contains("does not upgrade") || System.currentTimeMillis() > end) throw e;
                consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            }
        }
    }

    static void poll() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(text("group", "interop_poller"), hook());
        connect(consumer, nameserver);
        consumer.setInstanceName("l" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1000);
        for (String topic : topics()) consumer.subscribe(topic, selector());
        consumer.start();
        long end = System.currentTimeMillis() + number("timeout", 30_000);
        int n = number("n", 1), got = 0;
        while (got < n && System.currentTimeMillis() < end) for (MessageExt message : consumer.poll(500)) { received(message); got++; }
        consumer.commitSync();
        consumer.shutdown();
    }

    // ---- finding

    static void byKey() throws Exception {
        DefaultMQProducer producer = producer();
        try {
            QueryResult result = producer.queryMessage(text("topic", ""), text("key", ""), number("max", 32),
                Long.parseLong(text("begin", "0")), Long.parseLong(text("end", "" + Long.MAX_VALUE)));
            for (MessageExt message : result.getMessageList()) received(message);
        } catch (org.apache.rocketmq.client.exception.MQClientException cause) {
            Json.print("error", cause.getErrorMessage(), "code", cause.getResponseCode());
        }
        producer.shutdown();
    }

    static void byId() throws Exception {
        DefaultMQPullConsumer consumer = puller();
        for (String id : text("id", "").split(",")) {
            try {
                MessageExt message = consumer.viewMessage(text("topic", ""), id);
                if (message == null) Json.print("error", "no message", "id", id); else received(message);
            } catch (Exception cause) {
                Json.print("error", String.valueOf(cause), "id", id);
            }
        }
        consumer.shutdown();
    }

    static void offsets() throws Exception {
        DefaultMQPullConsumer consumer = puller();
        long time = Long.parseLong(text("time", "0"));
        for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(text("topic", ""))))
            Json.print("topic", queue.getTopic(), "queue", queue.getQueueId(), "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue),
                "at_time", consumer.searchOffset(queue, time), "earliest_ms", consumer.earliestMsgStoreTime(queue));
        consumer.shutdown();
    }
}
