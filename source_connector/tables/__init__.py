"""A table's definition: read, watched, registered with the data topic, told when it changes."""
