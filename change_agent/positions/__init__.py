"""How far the log is read: stored, copied, taken up again."""
