"""Events topics and what belongs to them: readers, decoders, published changes, dead letters, expiries."""
