import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, one command a line of standard input, with words between tabs; prints what each command prints.
 * One that repeats itself without end is ended in its first pause.
 */
class Mqadmin {
    private static final long LOOK_MS = 10;
    private static final String COMMANDS = "org.apache.rocketmq.tools.command.", FAILED = COMMANDS + "SubCommandException";
    private static volatile boolean isEnded;

    static void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Thread hurry = new Thread(Mqadmin::shortenEnds, "shorten-ends");
        hurry.setDaemon(true);
        hurry.start();
        for (String line; (line = lines.readLine()) != null; ) {
            isEnded = false;
            PrintStream out = System.out, errors = System.err;
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            try (PrintStream both = new PrintStream(printed, true, "UTF-8")) {
                System.setOut(both);
                System.setErr(both);
                MQAdminStartup.main0(line.split("\t"), Interop.hook());
            } finally {
                System.setOut(out);
                System.setErr(errors);
            }
            String text = new String(printed.toByteArray(), StandardCharsets.UTF_8);
            Json.print("command", line, "text", isEnded && text.contains(FAILED) ? text.substring(0, text.indexOf(FAILED)) : text);
        }
    }

    /** A client that ends waits for its thread of netty events, which waits up to 3 s for an event. Nothing is left to do then. */
    private static void shortenEnds() {
        try {
            for (; ; Thread.sleep(LOOK_MS)) {
                Thread[] threads = new Thread[Thread.activeCount() + 50];
                threads = Arrays.copyOf(threads, Thread.enumerate(threads));
                for (Thread main : threads) {
                    if (!main.getName().equals("main")) continue;
                    StackTraceElement[] at = main.getStackTrace();
                    if (isPausing(at)) {
                        isEnded = true;
                        main.interrupt();
                    } else if (isEnding(at)) {
                        for (Thread each : threads) if (each.getName().startsWith("NettyEventExecutor")) each.interrupt();
                    }
                }
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean isPausing(StackTraceElement[] at) {
        return at.length > 1 && at[0].getMethodName().equals("sleep") && at[1].getClassName().startsWith(COMMANDS + "cluster.");
    }

    private static boolean isEnding(StackTraceElement[] at) {
        return Arrays.stream(at).anyMatch(each -> each.getMethodName().equals("shutdown") && each.getClassName().endsWith("NettyRemotingClient"));
    }
}
