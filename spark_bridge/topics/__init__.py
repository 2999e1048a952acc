"""Data topics as Pulsar tells of them: options, access, positions, ends, schemas."""
