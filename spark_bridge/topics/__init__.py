"""Data topics in Pulsar: options, access, positions, ends, schemas."""
