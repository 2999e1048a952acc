"""A table's definition: read, watched, registered with the data topic, published when it changes."""
