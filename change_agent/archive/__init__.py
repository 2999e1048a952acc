"""The archive of finished segments, with the schema history that is needed to read them."""
