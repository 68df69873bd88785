"""The memory engine: leases of one process, with the same laws as the others."""

from holdfast.engines.memory.engine import open_engine

__all__ = ["open_engine"]
