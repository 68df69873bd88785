"""Leases: the state machine, its steps, locks and leader election."""
