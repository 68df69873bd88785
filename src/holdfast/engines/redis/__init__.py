"""Leases across hosts, on a Redis or Valkey server."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from holdfast.engines.interface import ALL_FEATURES, Capability, EngineDriver, Scope
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.redis.engine import RedisEngine


def open_engine(settings: Settings) -> RedisEngine:
    """Open the engine for a URL (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, …) or a redis-py client."""
    for library in ("redis", "hiredis"):
        if importlib.util.find_spec(library) is None:
            raise InvalidConfig("url", settings.url, f"{library} is not installed: pip install 'holdfast[redis]'")
    settings.refuse_clock()

    # Imported here: the client library is an extra.
    from holdfast.engines.redis.address import location_of, namespace_of, topology_of  # noqa: PLC0415
    from holdfast.engines.redis.engine import RedisEngine  # noqa: PLC0415

    topology = topology_of(settings)
    location = location_of(settings, topology)
    return RedisEngine(topology, settings.fence_memory_us, namespace_of(settings), location)


DRIVER = EngineDriver(
    open_engine, Scope.HOSTS, ALL_FEATURES | {Capability.FIFO, Capability.REPLICAS, Capability.EXPIRY_EVENTS}
)
