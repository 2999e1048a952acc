"""What is known of the tables, now and at the time of a mutation."""
