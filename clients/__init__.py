"""Code around the clients of Pulsar and Cassandra that all products share: credentials, TLS, redirects, refusals."""
