"""The positions up to which the log is read and acknowledged: tracked, stored, copied and restored."""
