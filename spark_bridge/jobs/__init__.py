"""Jobs over a data topic: tables kept in a lakehouse, and checks of them. Each is a function of a Spark session."""
