"""The agent on a strict Pulsar. A package, so that the fixtures of its scope start the servers once for all of its files."""
