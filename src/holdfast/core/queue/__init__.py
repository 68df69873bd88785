"""Message queues: publish, consume, work, and handle dead letters."""
