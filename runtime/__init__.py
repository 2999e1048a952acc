"""Threads of a process that runs for months: start and stop, back-off before a retry, repeated warnings."""
