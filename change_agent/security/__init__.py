"""Reads Java key stores without Java, for the keys of encrypted commit logs: the reading part of o.a.c.security."""
