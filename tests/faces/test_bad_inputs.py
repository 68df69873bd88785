"""The mistakes of a new user: each gets an error that names the value, the rule and the next step, before any I/O."""

import asyncio
import inspect
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, InvalidConfig, UnknownOption, aio
from holdfast.config import settings

# No server listens there: a call that did I/O would raise `Unavailable`.
NOWHERE = "redis://127.0.0.1:1"


async def coroutine():
    """A function of the other face."""


def generator():
    yield


def plain(day):
    """A function with one argument."""
    return day


def work_of(hf):
    """Return a function that the face of the client runs, with the argument `day`."""

    async def work(day):
        return day

    return work if isinstance(hf, aio.Holdfast) else plain


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = "number of seconds"

# What the user calls; the value in the error; its rule; the next step.
BAD = {
    # Where the leases are.
    "address": (lambda hf, c: c("localhost:6379"), "localhost:6379", "scheme", "did you mean redis://localhost:6379?"),
    "port": (lambda hf, c: c("redis://localhost:port"), "redis://", "a number", "redis://host:6379"),
    "scheme": (lambda hf, c: c("mysql://x"), "mysql://x", "scheme must be one of", "redis"),
    "empty url": (lambda hf, c: c(""), "url=''", "begin with a scheme", "sqlite:///path"),
    "url number": (lambda hf, c: c(6379), "int", "must be text", "redis://localhost:6379"),
    "url path": (lambda hf, c: c(Path("/srv/x.db")), "PosixPath", "be text", 'did you mean "sqlite:///srv/x.db"?'),
    "database": (lambda hf, c: c("redis://h/main"), "redis://h/main", "number of a database", "redis://host:6379/0"),
    "option": (lambda hf, c: c("redis://h?timeout=5"), "timeout", "only db, namespace", "did you mean socket_timeout?"),
    "option text": (lambda hf, c: c("redis://h?socket_timeout=fast"), "'fast'", "a duration", "such as 30s, 250ms"),
    "tls option": (lambda hf, c: c("redis://h?ssl_ca_certs=x"), "ssl_ca_certs", "needs TLS", "use rediss://"),
    "sqlite option": (lambda hf, c: c("sqlite:////tmp/x.db?mode=ro"), "mode", "takes no", "remove it"),
    "home": (lambda hf, c: c("sqlite:///~/x.db"), "~/x.db", "absolute path", "not expanded"),
    "memory": (lambda hf, c: c("sqlite:///:memory:"), ":memory:", "name a file", "memory://"),
    "relative": (lambda hf, c: c("file://shared"), "file://shared", "absolute path", "file:///srv/shared"),
    # How to connect.
    "keyword": (lambda hf, c: c(NOWHERE, lable="a"), "lable=", "takes only url, label", "did you mean label?"),
    "redis-py": (lambda hf, c: c(NOWHERE, ssl=True), "ssl=", "takes only url", "namespace"),
    "observer": (lambda hf, c: c(NOWHERE, observer="print"), "'print'", "callable", "list of such functions"),
    "observers": (lambda hf, c: c(NOWHERE, observer=[print, 7]), "7]", "callable", "list of such functions"),
    "async observer": (lambda hf, c: c(NOWHERE, observer=coroutine), "coroutine", "plain function", "not awaited"),
    "require": (lambda hf, c: c(NOWHERE, require="fast"), "'fast'", "one or several of", "survives restart"),
    "info": (lambda hf, c: c(NOWHERE, info="web"), "str of length 3", "a dictionary", "JSON"),
    "memory text": (lambda hf, c: c(NOWHERE, fence_memory="1m"), "'1m'", SECONDS, "timedelta(minutes=5)"),
    # Locks.
    "empty name": (lambda hf, c: hf.lock(""), "''", "not be empty", "'orders/42'"),
    "name number": (lambda hf, c: hf.lock(42), "42", "must be text, not int", "'orders/42'"),
    "long name": (lambda hf, c: hf.lock("n" * 600), "nnn", "at most 512 bytes", "a hash"),
    "ttl text": (lambda hf, c: hf.lock("x", ttl="30s"), "'30s'", SECONDS, "such as 30"),
    "ttl 0": (lambda hf, c: hf.lock("x", ttl=0), "ttl=0", "between 0.2", "such as 30"),
    "ttl ms": (lambda hf, c: hf.lock("x", ttl=30_000_000), "ttl=30000000", "31 days", "such as 30"),
    "no ttl": (lambda hf, c: hf.lock("x", ttl=None), "ttl=None", SECONDS, "such as 30"),
    "timeout -1": (lambda hf, c: hf.lock("x", timeout=-1), "timeout=-1", "zero or more", "None to wait for ever"),
    "blocking": (lambda hf, c: hf.lock("x", blocking=False), "blocking=False", "takes only name, ttl", "timeout=0"),
    "blocking_timeout": (lambda hf, c: hf.lock("x", blocking_timeout=5), "blocking_timeout=5", "only", "timeout="),
    "typing mistake": (lambda hf, c: hf.lock("x", time_out=5), "time_out=5", "takes only", "did you mean timeout?"),
    "redis-py sleep": (lambda hf, c: hf.lock("x", sleep=0.1), "sleep=0.1", "takes only", "leave it out"),
    "acquire blocking": (lambda hf, c: hf.lock("x").acquire(blocking=False), "blocking=False", "only", "timeout=0"),
    "acquire wait": (lambda hf, c: hf.lock("x").acquire(blocking_timeout=3), "blocking_timeout=3", "only", "timeout="),
    "acquire(False)": (lambda hf, c: hf.lock("x").acquire(False), "timeout=False", SECONDS, "0 tries once"),
    "on_loss": (lambda hf, c: hf.lock("x", on_loss="raise"), "'raise'", "must be report", "a function"),
    "async on_loss": (lambda hf, c: hf.lock("x", on_loss=coroutine), "coroutine", "plain function", "not awaited"),
    "confirm": (lambda hf, c: hf.lock("x", confirm=True), "confirm=True", "'replicas'", "None to leave it out"),
    "template": (lambda hf, c: hf.lock("x/{month}")(work_of(hf)), "x/{month}", "no argument 'month'", "it has day"),
    "generator": (lambda hf, c: hf.lock("x")(generator), "generator", "without the lease", "acquire the lease inside"),
    # Everything else.
    "permits": (lambda hf, c: hf.semaphore("x", permits=0), "permits=0", "a whole number", "from 1 to 10000"),
    "items": (lambda hf, c: hf.pool("p").set_items("abc"), "'abc'", "a list of names", "not one text"),
    "share": (lambda hf, c: hf.pool("p").borrow(share=50, tag="a"), "share=50", "from 0 to 1", "such as 0.5"),
    "rate": (lambda hf, c: hf.limit("10"), "'10'", "must read like", "10/second"),
    "unit": (lambda hf, c: hf.limit("10/fortnight"), "10/fortnight", "not a unit", "use second, minute"),
    "key": (lambda hf, c: hf.limit("1/second").hit(7), "7", "a key must be text", "'orders/42'"),
    "policy": (lambda hf, c: hf.limit("1/second", on_unavailable="open"), "'open'", "must be one of", "local, allow"),
    "budget": (lambda hf, c: hf.budget("b", limit=9.99), "9.99", "a whole number", "smallest unit"),
    "once": (lambda hf, c: hf.once("x").call("k", 7), "7", "callable", "without calling it"),
    "window": (lambda hf, c: hf.once("x", window=0), "window=0", "between 0.2", "such as 30"),
    "retries": (lambda hf, c: hf.queue("q", max_retries=5), "max_retries=5", "only", "did you mean max_attempts?"),
    "backoff": (lambda hf, c: hf.queue("q", backoff=5), "backoff=5", "holdfast.Backoff", "Backoff(first=1"),
    "body": (lambda hf, c: hf.queue("q").publish(object()), "object", "cannot encode it", "another body or codec"),
    "delay": (lambda hf, c: hf.queue("q").publish(1, delay=NEW_YEAR), "2026", SECONDS, "timedelta"),
    "countdown": (lambda hf, c: hf.queue("q").publish(1, countdown=5), "countdown=5", "takes only", "delay"),
    "priority": (lambda hf, c: hf.queue("q").publish(1, priority=9), "priority=9", "one of", "high, normal, low"),
    "registry": (lambda hf, c: hf.registry("r").claim(7), "7", "a key must be text", "'orders/42'"),
    "close": (lambda hf, c: hf.close("now"), "'now'", SECONDS, "timedelta"),
}  # fmt: skip


def blocking_error(call):
    """Return the error of the call in the blocking face."""
    hf = holdfast.connect(NOWHERE)
    with pytest.raises(HoldfastError) as caught:
        call(hf, holdfast.connect)
    return caught.value


def asyncio_error(call):
    """Return the error of the call in the asyncio face."""

    async def main():
        hf = await aio.connect(NOWHERE)
        with pytest.raises(HoldfastError) as caught:
            made = call(hf, aio.connect)
            if inspect.isawaitable(made):
                await made
        return caught.value

    return asyncio.run(main())


@pytest.mark.parametrize("face", [blocking_error, asyncio_error])
@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_gets_the_value_the_rule_and_the_next_step(face, mistake):
    """An error about the engine would mean that the call did I/O before it looked at its arguments."""
    call, value, rule, step = BAD[mistake]
    error = face(call)
    assert isinstance(error, ValueError), repr(error)
    assert not error.retryable
    for part in (value, rule, step):
        assert part in str(error)


def test_the_list_is_as_long_as_a_day_of_mistakes():
    """Fifty, as the first user made them."""
    assert len(BAD) >= 50


@pytest.mark.parametrize("face", [blocking_error, asyncio_error])
def test_an_unknown_option_of_connect_is_not_shown(face):
    """A user may pass a password as redis-py takes it."""
    error = face(lambda _, connect: connect(NOWHERE, password="hunter2"))
    assert "password='(not shown)'" in str(error)
    assert "hunter2" not in str(error) + repr(error) + repr(vars(error))


def test_only_asyncio_cancels():
    """The blocking face names the face that can, and what to do instead."""
    error = blocking_error(lambda hf, _: hf.lock("x", on_loss="cancel"))
    assert "only asyncio can cancel" in str(error)
    assert "holdfast.aio" in str(error)


def test_a_coroutine_function_needs_asyncio_and_a_plain_one_does_not():
    """Each face names the other one."""
    assert "holdfast.aio" in str(blocking_error(lambda hf, _: hf.lock("x")(coroutine)))
    assert "blocking face" in str(asyncio_error(lambda hf, _: hf.once("x").call("k", plain)))


@pytest.mark.parametrize("home", ["/nonexistent", "", "relative"])
def test_without_a_home_directory_the_error_names_the_variable(home, monkeypatch):
    """A service without a home directory meets this first."""
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(InvalidConfig, match="set HOLDFAST_URL"):
        settings(None, environ={"HOME": home})
    assert settings(None, environ={"HOME": home, "XDG_STATE_HOME": "/var/lib"}).path == "/var/lib/holdfast/holdfast.db"


def test_an_unknown_option_is_also_a_type_error():
    """Python raises `TypeError` for an unknown keyword, and programs may expect that."""
    error = blocking_error(lambda hf, _: hf.lock("x", time_out=5))
    assert isinstance(error, UnknownOption)
    assert isinstance(error, TypeError)
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_a_type_error_from_inside_a_call_is_not_changed():
    """Only unknown options are rewritten."""
    hf = holdfast.connect("memory://bad-inputs")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        hf.semaphore("x")
    with hf.queue("q").consumer() as consumer:
        assert consumer.receive(1, timeout=0) == []
    hf.close()
