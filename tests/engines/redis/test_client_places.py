"""Where a client object of redis-py leads to is told as a URL would have it, and tells two servers apart."""

import pytest
import redis
from redis.sentinel import Sentinel

import holdfast
from holdfast import DomainMismatch

CASES = {
    "redis://127.0.0.1:7001": lambda: redis.Redis(host="127.0.0.1", port=7001),
    "redis://127.0.0.1:7001/3": lambda: redis.Redis(host="127.0.0.1", port=7001, db=3),
    "rediss://h:6379": lambda: redis.asyncio.Redis(host="h", ssl=True),
    "unix:///run/redis.sock": lambda: redis.Redis(unix_socket_path="/run/redis.sock"),
    "redis+sentinel://a:1,b:2/main": lambda: Sentinel([("a", 1), ("b", 2)]).master_for("main"),
}


@pytest.mark.parametrize("url", CASES)
def test_a_client_object_is_told_by_where_it_leads_to(url):
    """Nothing is dialled for that, and no password is part of it."""
    hf = holdfast.connect(CASES[url](), namespace="tenant")

    assert hf.url == url
    assert hf._client.engine.place() == f"{url} tenant"
    hf.close()


@pytest.mark.acceptance("C-2", "A0-29")
def test_a_directory_tells_the_servers_of_two_client_objects_apart(server, tmp_path):
    """Two servers are two guards, however they are named; and one server is one, by its URL or by a client object."""
    host, port = "127.0.0.1", server.port
    with redis.Redis(host=host, port=port) as here, redis.Redis(host=host, port=port, db=1) as elsewhere:
        with holdfast.connect(here) as ours:
            ours.domain(tmp_path)
        with holdfast.connect(elsewhere) as theirs, pytest.raises(DomainMismatch, match=f"{host}:{port}"):
            theirs.domain(tmp_path)
        with holdfast.connect(f"redis://{host}:{port}") as same:
            assert same.domain(tmp_path)
