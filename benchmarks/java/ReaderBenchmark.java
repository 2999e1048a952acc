import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.Schema;

/**
 * Reads segments with Cassandra's own CommitLogReader and a handler that only counts.
 *
 * Arguments: segment files. One pass over them for each line on stdin, answered by one JSON line; so a caller can let the
 * JVM warm up, and take turns with other readers. The schema is the one in the data directory of -Dcassandra.config.
 */
public final class ReaderBenchmark implements CommitLogReadHandler
{
    private long mutations;
    private long bytes;

    public static void main(String[] segments) throws Exception
    {
        DatabaseDescriptor.toolInitialization();
        Schema.instance.loadFromDisk();
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        while (asked.readLine() != null)
            System.out.println(new ReaderBenchmark().pass(segments));
        System.exit(0);
    }

    private String pass(String[] segments) throws Exception
    {
        long wall = System.nanoTime();
        long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        for (String segment : segments)
            new CommitLogReader().readCommitLogSegment(this, new File(Paths.get(segment)), false);
        cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu;
        wall = System.nanoTime() - wall;
        return String.format("{\"mutations\": %d, \"bytes\": %d, \"wall_ns\": %d, \"cpu_ns\": %d, \"rss_bytes\": %d}",
                             mutations, bytes, wall, cpu, rss());
    }

    private static long rss() throws Exception
    {
        Path status = Paths.get("/proc/self/status");
        for (String line : Files.readAllLines(status))
            if (line.startsWith("VmRSS:"))
                return 1024L * Long.parseLong(line.replaceAll("[^0-9]", ""));
        throw new IllegalStateException(status + " tells no VmRSS");
    }

    @Override
    public boolean shouldSkipSegmentOnError(CommitLogReadException exception)
    {
        throw new IllegalStateException(exception.getMessage());
    }

    @Override
    public void handleUnrecoverableError(CommitLogReadException exception)
    {
        throw new IllegalStateException(exception.getMessage());
    }

    @Override
    public void handleMutation(Mutation mutation, int size, int entryLocation, CommitLogDescriptor descriptor)
    {
        mutations++;
        bytes += size;
    }
}
