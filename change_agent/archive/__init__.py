"""Finished segments, kept whole with the schema that explains them."""
