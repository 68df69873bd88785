"""`holdfast dlq`: the dead letters of a queue, and sending them again."""
