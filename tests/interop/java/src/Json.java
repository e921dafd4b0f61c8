import java.util.Collection;
import java.util.Map;

/** One JSON object a line on standard output; several threads may print. */
class Json {
    static void print(Object... pairs) {
        StringBuilder line = new StringBuilder("{");
        for (int i = 0; i < pairs.length; i += 2) {
            if (i > 0) line.append(',');
            quote(line, String.valueOf(pairs[i]));
            line.append(':');
            write(line, pairs[i + 1]);
        }
        line.append("}\n");
        synchronized (System.out) {
            System.out.print(line);
            System.out.flush();
        }
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) out.append(value);
        else if (value instanceof Map) {
            String separator = "";
            out.append('{');
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                quote(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                separator = ",";
            }
            out.append('}');
        } else if (value instanceof Collection) {
            String separator = "";
            out.append('[');
            for (Object item : (Collection<?>) value) {
                out.append(separator);
                write(out, item);
                separator = ",";
            }
            out.append(']');
        } else quote(out, value.toString());
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        out.append('"');
    }
}
