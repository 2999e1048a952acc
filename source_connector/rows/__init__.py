"""From an event to the row that is there now: what is read, when, and how it is encoded."""
