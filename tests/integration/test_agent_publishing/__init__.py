"""The agent on a strict Pulsar. As a package, it starts its package-scoped servers once for all of its files."""
