import java.nio.ByteBuffer;
import java.util.UUID;

import org.apache.cassandra.config.Schema;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;

/** What CommitLogOracle needs under the names of Cassandra 3.11. */
final class SchemaAccess
{
    static void load()
    {
        Schema.instance.loadFromDisk(false);
    }

    static String tableName(PartitionUpdate update)
    {
        return update.metadata().cfName;
    }

    static UUID tableId(PartitionUpdate update)
    {
        return update.metadata().cfId;
    }

    static ByteBuffer value(Cell cell)
    {
        return cell.value();
    }

    static ByteBuffer value(ClusteringPrefix prefix, int i)
    {
        return prefix.get(i);
    }
}
