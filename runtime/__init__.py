"""Threads of a process that runs for months: how they start and stop, wait before they retry, and warn."""
