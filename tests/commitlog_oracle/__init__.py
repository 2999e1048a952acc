"""Cassandra's own commit log reader as the judge of ours: a small Java program, and what runs it."""
