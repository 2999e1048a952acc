"""A table's definition: reads and watches it, registers it with the data topic, publishes its changes."""
