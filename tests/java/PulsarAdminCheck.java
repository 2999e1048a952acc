import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import picocli.CommandLine;

/** Parses commands of pulsar-admin and runs none: a command a line on stdin, its words separated by tabs; an answer a line. */
public class PulsarAdminCheck extends PulsarAdminTool {
    PulsarAdminCheck() throws Exception {
        super(new Properties());
    }

    String answer(String[] words) {
        try {
            commander.parseArgs(words);
            return "whole";
        } catch (CommandLine.MissingParameterException error) {
            return "incomplete";
        } catch (CommandLine.ParameterException error) {
            return error.getMessage().replace('\n', ' ');
        }
    }

    public static void main(String[] arguments) throws Exception {
        PulsarAdminCheck check = new PulsarAdminCheck();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("> " + check.answer(line.split("\t")));
        }
    }
}
