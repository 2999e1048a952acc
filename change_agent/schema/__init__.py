"""The definitions of tables, now and at the time of a mutation."""
