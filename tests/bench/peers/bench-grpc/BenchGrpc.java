import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * BenchGrpc HOST:PORT TOPIC SCENARIO key=value...   with the Java client of RocketMQ 5; prints a JSON line.
 * sync (threads=), async (window=), receive (threads=, n= messages that are sent first; 32 at a time, each acknowledged).
 * size= bytes of a body, warm= and sec= seconds, ssl= as the client does it by default (true), pid= of the server: cpu_us is its
 * processor time for a message.
 */
public class BenchGrpc {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static Map<String, String> opt = new HashMap<>();
    static int number(String name, int otherwise) { return opt.containsKey(name) ? Integer.parseInt(opt.get(name)) : otherwise; }
    static ClientConfiguration server; static String topic; static byte[] body;

    static Message message(String key) { return PROVIDER.newMessageBuilder().setTopic(topic).setTag("TagA").setKeys(key).setBody(body).build(); }
    static Producer producer() throws Exception { return PROVIDER.newProducerBuilder().setClientConfiguration(server).setTopics(topic).build(); }

    /** Processor time of the server so far, in microseconds; 0 if it is not asked for. */
    static long cpu() throws Exception {
        if (!opt.containsKey("pid")) return 0;
        String stat = Files.readString(Path.of("/proc/" + opt.get("pid") + "/stat"));
        String[] words = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(words[11]) + Long.parseLong(words[12])) * 10_000;
    }
    static void print(Object... pairs) {
        StringBuilder line = new StringBuilder("{");
        for (int at = 0; at < pairs.length; at += 2) {
            Object value = pairs[at + 1];
            String text = value instanceof Double ? String.format(Locale.ROOT, "%.3f", value) : value instanceof Number ? value.toString() : "\"" + value + "\"";
            line.append(at > 0 ? ", " : "").append('"').append(pairs[at]).append("\": ").append(text);
        }
        System.out.println(line.append('}')); System.out.flush();
    }
    interface Work { int once(String key) throws Exception; }
    record Phase(int messages, int failed, double seconds, long cpuUs, long[] latencies) {}

    /** Every thread repeats `work`, which returns a number of messages, until the time is over. */
    static Phase phase(int threads, double seconds, Work work) throws Exception {
        AtomicInteger messages = new AtomicInteger(), failed = new AtomicInteger();
        List<long[]> all = Collections.synchronizedList(new ArrayList<>());
        long began = System.nanoTime(), cpu = cpu();
        Thread[] workers = new Thread[threads];
        for (int t = 0; t < threads; t++) { final int thread = t; workers[t] = new Thread(() -> {
            long[] took = new long[1 << 16]; int count = 0, number = 0;
            while (System.nanoTime() - began < seconds * 1e9) {
                long asked = System.nanoTime();
                try { messages.addAndGet(work.once(thread + "_" + number++)); }
                catch (Exception e) { if (failed.incrementAndGet() == 1) System.err.println("first failure: " + e); continue; }
                if (count == took.length) took = Arrays.copyOf(took, count * 2);
                took[count++] = System.nanoTime() - asked;
            }
            all.add(Arrays.copyOf(took, count)); }); workers[t].start(); }
        for (Thread worker : workers) worker.join();
        double ran = (System.nanoTime() - began) / 1e9;
        long[] latencies = all.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        return new Phase(messages.get(), failed.get(), ran, cpu() - cpu, latencies);
    }
    static void print(String scenario, Phase phase) {
        long[] l = phase.latencies();
        print("scenario", scenario, "n", phase.messages(), "bad", phase.failed(), "sec", phase.seconds(), "msg_s", phase.messages() / phase.seconds(),
            "cpu_us", phase.cpuUs() / (double) Math.max(1, phase.messages()), "p50_us", l.length == 0 ? 0.0 : l[l.length / 2] / 1e3, "p99_us", l.length == 0 ? 0.0 : l[l.length * 99 / 100] / 1e3);
    }
    static void sync(int threads, double warm, double seconds) throws Exception {
        try (Producer producer = producer()) {
            Work send = key -> { producer.send(message(key)); return 1; };
            phase(threads, warm, send); print("sync", phase(threads, seconds, send));
        }
    }
    static void async(int window, double warm, double seconds) throws Exception {
        try (Producer producer = producer()) {
            Semaphore room = new Semaphore(window); AtomicInteger failed = new AtomicInteger();
            Work send = key -> { room.acquire(); producer.sendAsync(message(key)).whenComplete((receipt, error) -> { if (error != null) failed.incrementAndGet(); room.release(); }); return 1; };
            phase(1, warm, send); room.acquire(window); room.release(window); failed.set(0);
            Phase sent = phase(1, seconds, send); room.acquire(window);
            print("async", new Phase(sent.messages() - failed.get(), failed.get(), sent.seconds(), sent.cpuUs(), sent.latencies()));
        }
    }
    static void fill(int messages) throws Exception {
        try (Producer producer = producer()) {
            Semaphore room = new Semaphore(256); AtomicInteger failed = new AtomicInteger();
            for (int n = 0; n < messages; n++) { room.acquire(); producer.sendAsync(message("f" + n)).whenComplete((receipt, error) -> { if (error != null) failed.incrementAndGet(); room.release(); }); }
            room.acquire(256);
            if (failed.get() > 0) throw new IllegalStateException(failed.get() + " of " + messages + " messages were not sent");
        }
    }
    static void receive(int threads, int messages, double warm, double seconds) throws Exception {
        fill(messages);
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(server).setConsumerGroup("BenchGrpcGroup").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build()) {
            Work take = key -> {
                List<MessageView> views = consumer.receive(32, Duration.ofSeconds(60)); List<CompletableFuture<Void>> acks = new ArrayList<>();
                for (MessageView view : views) acks.add(consumer.ackAsync(view));
                for (CompletableFuture<Void> ack : acks) ack.get();
                return views.size();
            };
            phase(threads, warm, take); print("receive", phase(threads, seconds, take));
        }
    }
    public static void main(String[] words) throws Exception {
        topic = words[1];
        for (int at = 3; at < words.length; at++) { String[] pair = words[at].split("=", 2); opt.put(pair[0], pair[1]); }
        server = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(Boolean.parseBoolean(opt.getOrDefault("ssl", "true"))).setRequestTimeout(Duration.ofSeconds(10)).build();
        body = new byte[number("size", 1024)]; new Random(7).nextBytes(body);
        double warm = number("warm", 3), seconds = number("sec", 10);
        switch (words[2]) {
            case "sync" -> sync(number("threads", 8), warm, seconds);
            case "async" -> async(number("window", 256), warm, seconds);
            case "receive" -> receive(number("threads", 4), number("n", 100_000), warm, seconds);
            default -> throw new IllegalArgumentException(words[2]);
        }
        System.exit(0);
    }
}
