"""What a process that runs for months needs of its threads: how they start and stop, wait before they retry, and warn."""
