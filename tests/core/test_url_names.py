"""Errors about a URL name the setting that it came from, and show no secret."""

import asyncio
import inspect

import pytest

import holdfast
from holdfast import InvalidConfig, aio

BAD = {
    "redi://db:6379": "HOLDFAST_URL='redi://db:6379' is refused: the scheme",
    "nonsense": "HOLDFAST_URL='nonsense' is refused: it must begin with a scheme",
    "sqlite://leases.db": "HOLDFAST_URL='sqlite://leases.db' is refused: it must name a file",
    "redis://db:port": "HOLDFAST_URL='redis://(not shown)' is refused: it is not a valid URL",
    "redis://db/leases": "HOLDFAST_URL='redis://db/leases' is refused: the path",
    "redis://db?speed=9": "option speed of HOLDFAST_URL='(not shown)' is refused",
    "memory://?speed=9": "option speed of HOLDFAST_URL='(not shown)' is refused",
}


def by_blocking(*url):
    with holdfast.connect(*url):
        pass


def by_asyncio(*url):
    async def connected():
        async with await aio.connect(*url):
            pass

    asyncio.run(connected())


@pytest.mark.parametrize("connected", [by_blocking, by_asyncio])
@pytest.mark.parametrize("url", BAD)
def test_an_error_about_the_url_of_the_variable_names_the_variable(monkeypatch, connected, url):
    """A program that calls `connect()` has no url in it, and its author would look for one."""
    monkeypatch.setenv("HOLDFAST_URL", url)
    with pytest.raises(InvalidConfig) as refused:
        connected()
    assert str(refused.value).startswith(BAD[url])


@pytest.mark.parametrize("url", BAD)
def test_an_error_about_the_url_of_the_program_names_the_argument(monkeypatch, url):
    """The variable has no effect then, so naming it would mislead."""
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    with pytest.raises(InvalidConfig) as refused:
        by_blocking(url)
    assert refused.value.setting in ("url", "option speed")


def test_an_error_about_a_missing_capability_names_the_variable(monkeypatch, tmp_path):
    """The error comes later, when the program makes a queue, and is the same mistake."""
    monkeypatch.setenv("HOLDFAST_URL", f"file://{tmp_path}")
    with holdfast.connect() as client, pytest.raises(InvalidConfig, match=r"^HOLDFAST_URL=.* no queues"):
        client.queue("jobs")


def test_an_error_about_a_namespace_names_the_argument(monkeypatch, tmp_path):
    """The namespace is an argument, whatever the variable contains."""
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/leases.db")
    with pytest.raises(InvalidConfig) as refused:
        holdfast.connect(namespace="tenant")
    assert refused.value.setting == "option namespace"
    assert refused.value.rule == "sqlite:// takes no namespace; redis://, valkey:// and unix:// take one"


@pytest.mark.parametrize("face", [holdfast, aio])
def test_the_annotation_of_the_url_admits_client_objects(face):
    """A type checker must accept `connect(redis.Redis())`, which the library documents."""
    annotation = inspect.signature(face.connect).parameters["url"].annotation
    assert annotation == "str | RedisClient | RedisClusterClient | None"


@pytest.mark.parametrize("url", ["localhost:6379", "me:hunter2@localhost:6379", "127.0.0.1:6379"])
def test_an_address_without_a_scheme_gets_a_hint(url):
    """Most tools take `host:port`, so a user writes it here too; the hint shows no password."""
    address = url.rpartition("@")[2]
    with pytest.raises(InvalidConfig, match=rf"; did you mean redis://{address}\?$") as refused:
        holdfast.connect(url)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidConfig, match=r"the entry-point group holdfast\.engines$"):
        holdfast.connect("redi://localhost:6379")


@pytest.mark.parametrize(
    "url", ["sqlite:///srv/1#hunter2", "file:///srv/1#", "redis://:1#hunter2@db", "memory://#hunter2"]
)
def test_a_url_with_a_hash_is_refused(url):
    """`team#1.db` and `team#2.db` would be one file, and each team would wait for the other without a reason."""
    with pytest.raises(InvalidConfig, match="write %23") as refused:
        holdfast.connect(url)
    assert "hunter2" not in f"{refused.value} {refused.value.args}"


@pytest.mark.parametrize("url", ["sqlite:///srv/leases.db", "file:///srv", "memory://", "redis://db"])
def test_the_value_of_an_unknown_option_is_not_shown(url):
    """It may be the password of another engine, and errors are logged."""
    with pytest.raises(InvalidConfig) as refused:
        holdfast.connect(f"{url}?passwort=hunter2")
    error = refused.value
    assert "passwort" in str(error)
    assert "hunter2" not in f"{error} {error.args} {error.value} {error.__context__}"


@pytest.mark.parametrize(
    "url", ["unix://", "unix:///", "unix://s.sock", "unix://run/s.sock", "unix://me:pw@run/s.sock"]
)
def test_a_socket_is_named_by_its_absolute_path(url):
    """A URL parser would drop the first part of a relative path, and look for the rest at the root."""
    with pytest.raises(InvalidConfig, match="by its absolute path"):
        holdfast.connect(url)
    holdfast.connect("unix://me:pw@/run/s.sock").close()
