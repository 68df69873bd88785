"""The location of a redis-py client is a URL that identifies the server."""

import pytest
import redis
from redis.sentinel import Sentinel

import holdfast

CASES = {
    "redis://127.0.0.1:7001": lambda: redis.Redis(host="127.0.0.1", port=7001),
    "redis://127.0.0.1:7001/3": lambda: redis.Redis(host="127.0.0.1", port=7001, db=3),
    "rediss://h:6379": lambda: redis.asyncio.Redis(host="h", ssl=True),
    "unix:///run/redis.sock": lambda: redis.Redis(unix_socket_path="/run/redis.sock"),
    "redis+sentinel://a:1,b:2/main": lambda: Sentinel([("a", 1), ("b", 2)]).master_for("main"),
}


@pytest.mark.parametrize("url", CASES)
def test_a_client_object_is_identified_by_its_server(url):
    """This opens no connection and contains no password."""
    hf = holdfast.connect(CASES[url](), namespace="tenant")

    assert hf.url == url
    assert hf._client.engine.location() == f"{url} tenant"
    hf.close()
