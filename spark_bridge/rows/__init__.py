"""From raw rows to typed rows, to the row that counts, to the table as it is now."""
