import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Apache's mqadmin, one command a line of standard input, with words between tabs; prints what each command prints. */
class Mqadmin {
    static void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
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
            Json.print("command", line, "text", new String(printed.toByteArray(), StandardCharsets.UTF_8));
        }
    }
}
