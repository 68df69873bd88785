"""Leases: the state machine, its steps, locks and leadership."""
