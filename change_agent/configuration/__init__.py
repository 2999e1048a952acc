"""What the agent is told: `agent.yaml`, the environment, `cassandra.yaml`."""
