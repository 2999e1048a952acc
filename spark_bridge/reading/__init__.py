"""Raw rows of a data topic, by the data source `cassandra_cdc` or by the pulsar-spark connector."""
