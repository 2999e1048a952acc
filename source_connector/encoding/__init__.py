"""A table's columns as records: their selection, their size, and their encoding."""
