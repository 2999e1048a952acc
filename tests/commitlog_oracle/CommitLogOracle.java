import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Iterator;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.RangeTombstone;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * Prints what Cassandra's own CommitLogReader reads, one JSON object a mutation, in the format of `cdc decode`.
 *
 * Arguments: segment files. The schema is the one in the data directory of -Dcassandra.config. Errors go to stderr, one
 * line each, and make the exit code 1. Compiled and run with the jars of the Cassandra version that wrote the segments,
 * and with the SchemaAccess of since4 or of 3.11, whose classes have other names.
 *
 * With --damaged FILE, the file names the segments, one a line: each is read up to its first error, as a replay that tolerates
 * none does, and a line {"end": path, "error": null or text} follows its mutations.
 */
public final class CommitLogOracle implements CommitLogReadHandler
{
    private final String segment;
    private final boolean untilFirstError;
    private static boolean failed = false;

    private CommitLogOracle(Path path, boolean untilFirstError)
    {
        this.segment = path.getFileName().toString();
        this.untilFirstError = untilFirstError;
    }

    public static void main(String[] arguments) throws Exception
    {
        DatabaseDescriptor.toolInitialization();
        SchemaAccess.load();
        if (arguments[0].equals("--damaged"))
        {
            for (String each : Files.readAllLines(Paths.get(arguments[1])))
                inItsOwnThread(() -> readDamaged(Paths.get(each)));
        }
        else
        {
            for (String each : arguments)
            {
                Path path = Paths.get(each);
                read(new CommitLogReader(), new CommitLogOracle(path, false), path);
            }
        }
        System.out.flush();
        System.exit(failed ? 1 : 0);
    }

    /** Cassandra keeps a cipher for each thread, and one that met a wrong padding goes on with the wrong block behind it. */
    private static void inItsOwnThread(Runnable reading) throws InterruptedException
    {
        Thread thread = new Thread(reading);
        thread.start();
        thread.join();
    }

    private static void readDamaged(Path path)
    {
        String error = null;
        try
        {
            read(new CommitLogReader(), new CommitLogOracle(path, true), path);
        }
        catch (Throwable e) // also what Cassandra does not foresee, such as lengths that take all memory
        {
            Throwable cause = e;
            while (cause.getCause() != null && (cause instanceof InvocationTargetException || cause.getClass() == RuntimeException.class))
                cause = cause.getCause();
            error = cause instanceof FirstError ? cause.getMessage() : cause.toString();
        }
        System.out.println("{\"end\": " + quoted(path.toString()) + ", \"error\": " + (error == null ? "null" : quoted(error)) + '}');
    }

    private static final class FirstError extends IOException
    {
        FirstError(CommitLogReadException exception)
        {
            super(exception.reason + ": " + exception.getMessage());
        }
    }

    /** Since 4.1 Cassandra has a File class of its own. */
    private static void read(CommitLogReader reader, CommitLogReadHandler handler, Path path) throws ReflectiveOperationException
    {
        Class<?> type;
        Object file;
        try
        {
            type = Class.forName("org.apache.cassandra.io.util.File");
            file = type.getConstructor(Path.class).newInstance(path);
        }
        catch (ClassNotFoundException e)
        {
            type = java.io.File.class;
            file = path.toFile();
        }
        CommitLogReader.class.getMethod("readCommitLogSegment", CommitLogReadHandler.class, type, boolean.class)
                             .invoke(reader, handler, file, false);
        reader.getInvalidMutations().forEach(e -> System.err.println("unknown table " + e.getKey() + ": " + e.getValue()));
    }

    @Override
    public boolean shouldSkipSegmentOnError(CommitLogReadException exception) throws IOException
    {
        return report(exception);
    }

    @Override
    public void handleUnrecoverableError(CommitLogReadException exception) throws IOException
    {
        report(exception);
    }

    private boolean report(CommitLogReadException exception) throws IOException
    {
        if (untilFirstError)
            throw new FirstError(exception);
        failed = true;
        System.err.println(segment + ": " + exception.reason + ": " + exception.getMessage().replace('\n', ' '));
        return true;
    }

    @Override
    public void handleMutation(Mutation mutation, int size, int entryLocation, CommitLogDescriptor descriptor)
    {
        StringBuilder out = new StringBuilder();
        out.append("{\"segment\": ").append(quoted(segment)).append(", \"position\": ").append(entryLocation)
           .append(", \"size\": ").append(size).append(", \"keyspace\": ").append(quoted(mutation.getKeyspaceName()))
           .append(", \"updates\": [");
        String separator = "";
        for (PartitionUpdate update : mutation.getPartitionUpdates())
        {
            out.append(separator);
            update(out, update);
            separator = ", ";
        }
        System.out.println(out.append("]}"));
    }

    private static void update(StringBuilder out, PartitionUpdate update)
    {
        out.append("{\"table\": ").append(quoted(SchemaAccess.tableName(update)));
        out.append(", \"table_id\": ").append(quoted(SchemaAccess.tableId(update).toString()));
        out.append(", \"partition_key\": ").append(hex(update.partitionKey().getKey()));
        out.append(", \"partition_deletion\": ");
        deletion(out, update.deletionInfo().getPartitionDeletion());
        out.append(", \"static_row\": ");
        if (update.staticRow().isEmpty())
            out.append("null");
        else
            row(out, update.staticRow());
        out.append(", \"rows\": [");
        String separator = "";
        for (Row row : update)
        {
            out.append(separator);
            row(out, row);
            separator = ", ";
        }
        out.append("], \"range_tombstones\": [");
        separator = "";
        for (Iterator<RangeTombstone> ranges = update.deletionInfo().rangeIterator(false); ranges.hasNext();)
        {
            out.append(separator);
            range(out, ranges.next());
            separator = ", ";
        }
        out.append("]}");
    }

    private static void range(StringBuilder out, RangeTombstone range)
    {
        out.append("{\"start\": ");
        clustering(out, range.deletedSlice().start());
        out.append(", \"start_inclusive\": ").append(range.deletedSlice().start().isInclusive());
        out.append(", \"end\": ");
        clustering(out, range.deletedSlice().end());
        out.append(", \"end_inclusive\": ").append(range.deletedSlice().end().isInclusive());
        out.append(", ");
        times(out, range.deletionTime());
        out.append('}');
    }

    private static void row(StringBuilder out, Row row)
    {
        out.append("{\"clustering\": ");
        clustering(out, row.clustering());
        out.append(", \"liveness\": ");
        liveness(out, row.primaryKeyLivenessInfo());
        out.append(", \"deletion\": ");
        deletion(out, row.deletion().time());
        StringBuilder deletions = new StringBuilder();
        StringBuilder cells = new StringBuilder();
        for (ColumnData data : row)
        {
            if (data.column().isSimple())
            {
                cell(cells, (Cell) data);
                continue;
            }
            ComplexColumnData complex = (ComplexColumnData) data;
            if (!complex.complexDeletion().isLive())
            {
                deletions.append(deletions.length() == 0 ? "" : ", ");
                deletions.append("{\"column\": ").append(quoted(data.column().name.toString())).append(", ");
                times(deletions, complex.complexDeletion());
                deletions.append('}');
            }
            for (Cell cell : complex)
                cell(cells, cell);
        }
        out.append(", \"complex_deletions\": [").append(deletions).append("], \"cells\": [").append(cells).append("]}");
    }

    private static void cell(StringBuilder out, Cell cell)
    {
        out.append(out.length() == 0 ? "" : ", ");
        out.append("{\"column\": ").append(quoted(cell.column().name.toString()));
        out.append(", \"path\": ").append(cell.path() == null ? "null" : hex(cell.path().get(0)));
        out.append(", \"value\": ").append(cell.isTombstone() ? "null" : hex(SchemaAccess.value(cell)));
        out.append(", \"timestamp\": ").append(cell.timestamp()).append(", \"ttl\": ").append(cell.ttl());
        out.append(", \"local_deletion_time\": ");
        if (cell.localDeletionTime() == Cell.NO_DELETION_TIME)
            out.append("null");
        else
            out.append(cell.localDeletionTime());
        out.append('}');
    }

    private static void liveness(StringBuilder out, LivenessInfo liveness)
    {
        if (liveness.isEmpty())
        {
            out.append("null");
            return;
        }
        out.append("{\"timestamp\": ").append(liveness.timestamp()).append(", \"ttl\": ").append(liveness.ttl());
        out.append(", \"local_expiration_time\": ");
        if (liveness.isExpiring())
            out.append(liveness.localExpirationTime());
        else
            out.append("null");
        out.append('}');
    }

    private static void deletion(StringBuilder out, DeletionTime deletion)
    {
        if (deletion.isLive())
        {
            out.append("null");
            return;
        }
        out.append('{');
        times(out, deletion);
        out.append('}');
    }

    private static void times(StringBuilder out, DeletionTime deletion)
    {
        out.append("\"timestamp\": ").append(deletion.markedForDeleteAt());
        out.append(", \"local_deletion_time\": ").append(deletion.localDeletionTime());
    }

    private static void clustering(StringBuilder out, ClusteringPrefix prefix)
    {
        out.append('[');
        for (int i = 0; i < prefix.size(); i++)
            out.append(i == 0 ? "" : ", ").append(prefix.get(i) == null ? "null" : hex(SchemaAccess.value(prefix, i)));
        out.append(']');
    }

    private static String hex(ByteBuffer bytes)
    {
        return '"' + ByteBufferUtil.bytesToHex(bytes) + '"';
    }

    private static String quoted(String text)
    {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray())
        {
            if (c == '"' || c == '\\')
                out.append('\\').append(c);
            else if (c < ' ' || c > '~')
                out.append(String.format("\\u%04x", (int) c));
            else
                out.append(c);
        }
        return out.append('"').toString();
    }
}
