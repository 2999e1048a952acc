"""A table's columns as records: which are selected, how large they are, and how their bytes are written."""
