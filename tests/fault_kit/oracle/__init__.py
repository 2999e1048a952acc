"""The oracle: it uses Cassandra, Pulsar's client and Avro, but no code of agent, connector, Spark bridge and `schemas`.

So a mistake in the product's own decoding or folding cannot hide itself. An import rule checks this.
"""
