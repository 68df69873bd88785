"""The keeper thread of a client: renewals, heartbeats, pending commands, and the guard against restarts."""
