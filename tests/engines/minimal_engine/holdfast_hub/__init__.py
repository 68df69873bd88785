"""An engine for the scheme `hub`: leases on a small server that stores texts in transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines import Capability, EngineDriver, Scope

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines import Engine


def open_engine(settings: Settings) -> Engine:
    """Open `hub://host:port/space`: clients of the same space share their leases."""
    settings.refuse_options()
    settings.refuse_clock()
    # Imported here: the driver is read without the engine.
    from holdfast_hub.engine import HubEngine

    return HubEngine(settings.path, settings.fence_memory_us)


DRIVER = EngineDriver(
    open_engine,
    Scope.HOSTS,
    frozenset((Capability.FIFO,)),
    hints={"unreachable": "is the hub running, and is the address in the URL right?"},
)
