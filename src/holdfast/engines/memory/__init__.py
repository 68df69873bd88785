"""The memory engine: leases of one process, under the same laws as all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines.interface import ALL_FEATURES, Capability, EngineDriver, Scope

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.local import LocalEngine


def open_engine(settings: Settings) -> LocalEngine:
    """Open `memory://` or `memory://name`: clients of the same URL share their leases."""
    # Imported here, so that reading the driver does not import the engine.
    from holdfast.engines.memory.engine import open_store  # noqa: PLC0415

    return open_store(settings)


SCOPE = Scope.PROCESS
CAPABILITIES = ALL_FEATURES | {Capability.FIFO}
DRIVER = EngineDriver(open_engine, SCOPE, CAPABILITIES)
