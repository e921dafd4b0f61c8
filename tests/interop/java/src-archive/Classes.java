import java.io.File;
import java.util.*;
import java.util.jar.*;

/**
 * Classes JAR_NAME... -- MAIN_CLASS ARGUMENT...    loads all classes of the jars of the class path whose file name begins with
 * one of these names, then runs the program, which loads those of Java that its start needs.
 *
 * build.sh runs it to make an archive of loaded classes. A class that refers to one that is not there stays out.
 */
public class Classes {
    public static void main(String[] words) throws Exception {
        int end = Arrays.asList(words).indexOf("--");
        String[] names = Arrays.copyOf(words, end);
        ClassLoader loader = Classes.class.getClassLoader();
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            String file = new File(path).getName();
            if (!file.endsWith(".jar") || Arrays.stream(names).noneMatch(file::startsWith)) continue;
            try (JarFile jar = new JarFile(path)) {
                for (JarEntry entry : Collections.list(jar.entries())) load(entry.getName(), loader);
            }
        }
        Object arguments = Arrays.copyOfRange(words, end + 2, words.length);
        Class.forName(words[end + 1]).getMethod("main", String[].class).invoke(null, arguments);
    }

    private static void load(String entry, ClassLoader loader) {
        if (!entry.endsWith(".class") || entry.startsWith("META-INF/") || entry.endsWith("-info.class")) return;
        try {
            Class.forName(entry.substring(0, entry.length() - ".class".length()).replace('/', '.'), false, loader);
        } catch (ClassNotFoundException | LinkageError absent) {
            // stays out
        }
    }
}
