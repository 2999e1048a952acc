"""From raw rows to typed rows, to the newest record of each key, to the current table."""
