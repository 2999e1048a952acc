"""From an event to the current row: which rows are read, when, and how they are published."""
