"""The registry: who runs what, and messages to the owner of an entry."""
