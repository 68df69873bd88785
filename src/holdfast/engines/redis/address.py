"""The topology for a URL, or for the user's own redis-py client.

Commas separate several hosts. `topology_of` checks all of them before the first connection. The error for an invalid
URL never repeats a part of the URL that may be secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import redis
import redis.asyncio

from holdfast.config import UNREADABLE, Secret
from holdfast.engines.redis.cluster import Cluster
from holdfast.engines.redis.connect import Connector, connector_of, connector_of_client, copied_settings
from holdfast.engines.redis.sentinel import SentinelPrimary, SentinelService
from holdfast.engines.redis.topology import SingleServer
from holdfast.errors import InvalidConfig
from holdfast.names import is_unicode

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.redis.topology import Topology

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SENTINEL_PORT, _SERVER_PORT = 26379, 6379
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
# These options are for the servers alone: a sentinel does not need them, and must not get the servers' password.
_SERVERS_ONLY = ("db", "namespace", "username", "password")


def namespace_of(settings: Settings) -> str:
    """Return the option `?namespace=`, which separates the leases of one tenant from all others on the servers."""
    namespace = settings.options.get("namespace", "")
    if "namespace" in settings.options and not _NAMESPACE.fullmatch(namespace):
        raise InvalidConfig("option namespace", namespace, "it must be 1 to 64 of: letters, digits, '.', '_', '-'")
    return namespace


def location_of(settings: Settings, topology: Topology) -> str:
    """Return the address that identifies the lock domain.

    It contains the database, also if the URL has it as an option.
    """
    db, not_in_url = topology.any_node().db, settings.source is not None and topology.follows
    return f"{topology.url}?db={db}" if db and (not_in_url or "db" in settings.options) else topology.url


def topology_of(settings: Settings) -> Topology:
    """Return the topology of the URL or the client object."""
    if settings.source is not None:
        return _topology_of_client(settings.source)
    base, _, kind = settings.scheme.partition("+")
    if not kind:
        return SingleServer(connector_of(settings))

    parts = urlsplit(settings.secret)
    user, at, hosts = parts.netloc.rpartition("@")
    path = unquote(parts.path.removeprefix("/"))
    server_options = {name: text for name, text in settings.options.items() if name not in _SENTINEL_OPTIONS}
    if kind == "sentinel":
        places = _hosts_and_ports(settings, hosts, _SENTINEL_PORT)
        if not path or "/" in path:
            # The error does not show the path: it may be the end of a password with a slash in it.
            raise InvalidConfig("url", settings.url, "the path must be the name of a service: ...//host,host/service")
        server = _connector_of_host(settings, base, user + at, places[0], server_options)
        sentinel_options = {name: text for name, text in server_options.items() if name not in _SERVERS_ONLY}
        sentinel = _connector_of_host(settings, base, _sentinel_credentials(settings), places[0], sentinel_options)
        return SentinelService(SentinelPrimary(settings.url, path, [sentinel.at(*place) for place in places], server))

    places = _hosts_and_ports(settings, hosts, _SERVER_PORT)
    if path not in ("", "0") or settings.options.get("db", "0") != "0":
        raise InvalidConfig("url", settings.url, "a cluster has one database, number 0")
    server = _connector_of_host(settings, base, user + at, places[0], dict(settings.options))
    return Cluster(settings.url, [server.at(*place) for place in places])


def _sentinel_credentials(settings: Settings) -> str:
    """Return the credentials of the sentinels, as the part of a URL before the host.

    They are not passed as options, because some versions of redis-py decode options twice.
    """
    user, password = (settings.options.get(name, "") for name in _SENTINEL_OPTIONS)
    if not is_unicode(user + password):
        raise InvalidConfig("url", settings.url, UNREADABLE)
    return f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""


def _connector_of_host(
    settings: Settings, base: str, user: str, place: tuple[str, int], options: dict[str, str]
) -> Connector:
    """Return the connector of one host, as if it were the only one, so that the same code checks the settings."""
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    if not all(map(is_unicode, options.values())):
        raise InvalidConfig("url", settings.url, UNREADABLE)
    query = f"?{urlencode(options)}" if options else ""
    text = Secret(f"{base}://{user}{host}:{place[1]}{query}")
    return connector_of(settings._replace(scheme=base, secret=text, options=options))


def _hosts_and_ports(settings: Settings, hosts: str, port: int) -> list[tuple[str, int]]:
    places = []
    for text in hosts.split(","):
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+)(?::(\d{1,5}))?", text)
        if found is None or not 0 < int(found[2] or port) < 65536:
            raise InvalidConfig("url", settings.url, UNREADABLE)
        places.append((found[1].strip("[]"), int(found[2] or port)))
    return places


def _topology_of_client(client: Any) -> Topology:
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        return _topology_of_cluster(client, manager)
    pool = client.connection_pool
    if getattr(pool, "sentinel_manager", None) is None:
        return SingleServer(connector_of_client(client))
    return _topology_of_service(client, pool)


def _topology_of_service(client: Any, pool: Any) -> Topology:
    """Return the topology of a client that `Sentinel.master_for` returned."""
    name, kwargs, sentinels = _client_name(client), dict(pool.connection_kwargs), pool.sentinel_manager.sentinels
    if not pool.is_master:
        raise InvalidConfig("client", name, "it reads from replicas: pass the client of the primary")
    if getattr(pool.sentinel_manager, "_force_master_ip", None):
        raise InvalidConfig("client", name, "its force_master_ip cannot be copied: pass a URL")
    tls = issubclass(pool.connection_class, redis.SSLConnection | redis.asyncio.SSLConnection)
    _refuse_connect_func(name, kwargs)
    connectors = [connector_of_client(sentinel) for sentinel in sentinels]
    hosts = ",".join(f"{host}:{port}" for host, port in (sentinel.place for sentinel in connectors))
    url = f"{'rediss' if tls else 'redis'}+sentinel://{hosts}/{pool.service_name}"
    return SentinelService(
        SentinelPrimary(
            url, pool.service_name, connectors, Connector(url, copied_settings(kwargs), tls=tls, path=False)
        )
    )


def _topology_of_cluster(client: Any, manager: Any) -> Topology:
    name = _client_name(client)
    kwargs = dict(getattr(client, "connection_kwargs", None) or manager.connection_kwargs)
    nodes = list(manager.startup_nodes.values())
    if getattr(manager, "address_remap", None) is not None:
        raise InvalidConfig("client", name, "its address_remap cannot be copied: pass a URL")
    _refuse_connect_func(name, kwargs)
    kind = kwargs.get("connection_class", redis.Connection)
    tls = bool(kwargs.get("ssl")) or issubclass(kind, redis.SSLConnection | redis.asyncio.SSLConnection)
    hosts = ",".join(f"{node.host}:{node.port}" for node in nodes)
    url = f"{'rediss' if tls else 'redis'}+cluster://{hosts}"
    server = Connector(url, copied_settings(kwargs), tls=tls, path=False)
    return Cluster(url, [server.at(node.host, node.port) for node in nodes])


def _refuse_connect_func(name: str, kwargs: dict[str, Any]) -> None:
    cluster_client = getattr(kwargs.get("redis_connect_func"), "__self__", None)
    # A cluster client has a connect function of its own (READONLY), which is not needed; no other one can be copied.
    copyable = isinstance(cluster_client, _CLUSTERS) and getattr(cluster_client, "user_on_connect_func", None) is None
    if kwargs.get("redis_connect_func") is not None and not copyable:
        raise InvalidConfig("client", name, "its redis_connect_func cannot be copied: pass a URL")


def _client_name(client: Any) -> str:
    return f"{type(client).__module__}.{type(client).__name__}"
