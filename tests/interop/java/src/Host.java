import java.io.*;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Host PROGRAM    runs commands of a program (Interop, Grpc) one after the other.
 *
 * Lines of standard input begin with a letter. R: run a command, whose words are apart by UNIT; I: a line of its standard input;
 * E: the end of its standard input. Prints {"ended": true} after each command. One that fails ends the process, with 1.
 */
public class Host {
    private static final String UNIT = "\u001f";

    public static void main(String[] args) throws Exception {
        Method run = Class.forName(args[0]).getDeclaredMethod("run", String[].class);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Input input = new Input();
        for (String line; (line = lines.readLine()) != null; ) {
            String text = line.substring(1);
            switch (line.charAt(0)) {
                case 'R':
                    input = new Input();
                    System.setIn(input);
                    Input its = input;
                    new Thread(() -> run(run, text.split(UNIT), its), "main").start();
                    break;
                case 'I': input.add(text + "\n"); break;
                case 'E': input.end(); break;
                default: throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(Method run, String[] words, Input input) {
        try {
            run.invoke(null, (Object) words);
        } catch (Exception cause) {
            cause.printStackTrace();
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        input.end();   // a thread may still read it
        Json.print("ended", true);
    }

    /** Standard input of one command. */
    private static class Input extends InputStream {
        private static final byte[] END = {};
        private final LinkedBlockingQueue<byte[]> pieces = new LinkedBlockingQueue<>();
        private byte[] piece = {0};
        private int at = 1;

        void add(String text) { pieces.add(text.getBytes(StandardCharsets.UTF_8)); }

        void end() { pieces.add(END); }

        @Override
        public synchronized int read() throws IOException {
            try {
                while (at == piece.length && piece != END) {
                    piece = pieces.take();
                    at = 0;
                }
            } catch (InterruptedException cause) {
                throw new InterruptedIOException();
            }
            return piece == END ? -1 : piece[at++] & 0xff;
        }

        @Override
        public synchronized int read(byte[] to, int from, int count) throws IOException {
            int first = read();
            if (first < 0 || count == 0) return first < 0 ? -1 : 0;
            to[from] = (byte) first;
            int more = Math.min(count - 1, piece.length - at);
            System.arraycopy(piece, at, to, from + 1, more);
            at += more;
            return more + 1;
        }
    }
}
