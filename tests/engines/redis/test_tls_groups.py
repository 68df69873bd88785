"""TLS on groups of servers: sentinels, replicas and masters speak it among themselves, and clients show certificates.

A server that was built with TLS speaks it itself; in front of any other one stands a `TlsFront`.
"""

import os
import shutil

import pytest
import redis
import redis.asyncio.sentinel
import redis.sentinel
from redis_faces import Place

from holdfast import Unavailable
from holdfast.testing.servers import certificates, missing
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels
from tests.support.tls_front import tls_kind

GROUPS = {"sentinel": Sentinels, "cluster": Cluster}
ALL = os.environ.get("HOLDFAST_GROUPS") == "all"
FACES = ["blocking", "asyncio"] if ALL else ["blocking"]


def no_tls():
    """Return why TLS cannot be tested here; empty if it can."""
    if shutil.which("openssl") is None:
        return "there is no openssl program to make certificates with: install openssl"
    return "" if tls_kind() else missing()


@pytest.fixture(scope="module", params=list(GROUPS))
def secured(request, tmp_path_factory):
    """A group that accepts TLS only, and checks client certificates."""
    if no_tls():
        pytest.skip(no_tls())
    shown = certificates(tmp_path_factory.mktemp("certificates"), mutual=True)
    with GROUPS[request.param](tls_kind(), tls=shown) as group:
        yield group


@pytest.fixture
def place(secured, loop, request):
    place = Place(secured, request.param, loop)
    yield place
    place.close()
    secured.heal()


def user(group):
    """Create a user with a password on every server."""
    everybody = [*group.servers, *getattr(group, "sentinels", ())]
    for server in everybody:
        server.command("ACL", "SETUSER", "app", "reset", "on", ">p%40w", "allkeys", "allchannels", "+@all")
    url = group.url.replace("://", "://app:p%2540w@")
    return url + "&sentinel_username=app&sentinel_password=p%2540w" * ("+sentinel" in url)


@pytest.mark.parametrize("place", FACES, indirect=True)
def test_leases_over_tls_go_on_when_the_primary_is_killed(place):
    """With a client certificate, a user and a password: held, renewed, waited for, and moved to another server."""
    url = user(place.server)
    client, other = place.connect(url), place.connect(url)
    held = client.lock("x", ttl=12).acquire(timeout=5)
    waiting = place.start(lambda: other.lock("x", ttl=20).acquire(timeout=40))
    place.until_queued(client, "x", 1)
    place.server.wait_replicated()

    before = place.server.server_of("x")
    before.kill()
    place.server.wait_replaced(before)
    place.until("renewed", timeout=20)
    held.release()

    waiting.result(40).release()
    assert place.kinds("lost") == []
    assert "p%40w" not in repr(client) + client.url


def clients_of(group):
    """Return clients of redis-py, blocking and asyncio: of the group, and of the server of the name alone."""
    shown = group.tls
    how = {"ssl": True, "ssl_ca_certs": str(shown.authority)}
    how |= {"ssl_certfile": str(shown.certificate), "ssl_keyfile": str(shown.key)}
    plain = [
        kind(host="127.0.0.1", port=group.server_of("x").port, **how) for kind in (redis.Redis, redis.asyncio.Redis)
    ]
    if "+cluster" in group.url:
        kinds = (redis.RedisCluster, redis.asyncio.RedisCluster)
        return [*plain, *(kind(host="127.0.0.1", port=group.servers[0].port, **how) for kind in kinds)]
    hosts = [("127.0.0.1", sentinel.port) for sentinel in group.sentinels]
    kinds = (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)
    return [*plain, *(kind(hosts, sentinel_kwargs=how, **how).master_for(group.service) for kind in kinds)]


@pytest.mark.parametrize("place", ["asyncio"], indirect=True)
def test_a_client_object_of_either_library_keeps_its_certificates(place):
    """The two have different TLS settings; one that is not set is no reason to refuse the client."""
    theirs = clients_of(place.server)
    for client in theirs:
        place.connect(client).lock("x").acquire(timeout=5).release()
    for client in theirs[::2]:  # the others have opened nothing
        client.close()


@pytest.mark.parametrize("place", ["asyncio"], indirect=True)
def test_a_setting_of_tls_that_one_library_lacks_is_not_dropped(place):
    """A user who asked for a check would believe that it is made."""
    client = place.connect(f"{place.server.url}&ssl_validate_ocsp=True")

    with pytest.raises(Unavailable, match="has no setting ssl_validate_ocsp") as trouble:
        client.lock("x").acquire(timeout=0)

    assert not trouble.value.retryable


@pytest.mark.parametrize("place", ["blocking"], indirect=True)
def test_a_client_without_a_certificate_is_refused_by_every_server(place):
    """The servers refuse the handshake: no lease is granted, and the error names the cause."""
    url = place.server.url.partition("&")[0]  # it knows the authority, and has nothing to show
    client = place.connect(url)

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=1)

    assert "TLS" in str(trouble.value)
