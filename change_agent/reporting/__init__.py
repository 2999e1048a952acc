"""Reports of the agent's state: metrics, health, status, progress, log."""
