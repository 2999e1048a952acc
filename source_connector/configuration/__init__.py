"""What the source is told: options, key stores, which tables."""
