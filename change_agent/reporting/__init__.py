"""How the agent is doing: metrics, health, status, log."""
