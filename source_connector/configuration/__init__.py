"""The configuration of a source: options, key stores, which tables."""
