import java.nio.ByteBuffer;
import java.util.UUID;

import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.Schema;

/** What CommitLogOracle needs under the names of Cassandra 4.0 and later. */
final class SchemaAccess
{
    /** 4.0 wants to be told not to announce a new schema version. */
    static void load() throws ReflectiveOperationException
    {
        try
        {
            Schema.class.getMethod("loadFromDisk", boolean.class).invoke(Schema.instance, false);
        }
        catch (NoSuchMethodException e)
        {
            Schema.class.getMethod("loadFromDisk").invoke(Schema.instance);
        }
    }

    static String tableName(PartitionUpdate update)
    {
        return update.metadata().name;
    }

    static UUID tableId(PartitionUpdate update)
    {
        return update.metadata().id.asUUID();
    }

    static ByteBuffer value(Cell<?> cell)
    {
        return cell.buffer();
    }

    static ByteBuffer value(ClusteringPrefix<?> prefix, int i)
    {
        return prefix.bufferAt(i);
    }
}
