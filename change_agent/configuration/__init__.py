"""The agent's options: `agent.yaml`, the environment, `cassandra.yaml`."""
