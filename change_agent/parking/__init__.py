"""Mutations that cannot be read yet: kept, listed, tried again."""
