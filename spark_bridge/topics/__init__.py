"""Data topics in Pulsar: options, access, positions, schemas."""

import clients.lean_imports  # noqa: F401  # first: Spark starts many Python processes
