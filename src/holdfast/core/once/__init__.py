"""`once`: at most one success per idempotency key."""
