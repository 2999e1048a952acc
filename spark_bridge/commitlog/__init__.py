"""An archive of commit log segments in Spark: the changes, the cells that every row had, a table at a moment."""
