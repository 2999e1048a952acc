"""Key stores of Java, read without Java: the keys of encrypted commit logs. As o.a.c.security, for reading only."""
