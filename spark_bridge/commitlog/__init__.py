"""An archive of commit log segments in Spark: its changes, the history of cells, a table at a moment."""
