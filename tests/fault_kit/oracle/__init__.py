"""The oracle: it knows Cassandra, Pulsar's client and Avro, and nothing of agent, connector, Spark bridge and their schemas.

So a mistake in the product's own decoding or folding cannot hide itself. An import rule keeps it so.
"""
