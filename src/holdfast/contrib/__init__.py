"""Integrations with other people's software: each is one module, imported by whoever uses it, behind an extra."""
