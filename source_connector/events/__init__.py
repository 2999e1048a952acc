"""Events topics: read, understood, remembered, set aside."""
