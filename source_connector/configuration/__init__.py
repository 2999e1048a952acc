"""The configuration of a source: options, key stores, the selection of tables."""
