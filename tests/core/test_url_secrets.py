"""Fifty URLs with a password in them, well-formed and malformed: no log, error, repr, event or traceback shows it."""

import asyncio
import logging
import os
import pickle
import signal
import traceback

import pytest

import holdfast
from holdfast import HoldfastError, aio, config
from holdfast.cli.app import main
from holdfast.cli.run.signals import FORWARDED
from holdfast.contrib.lancedb import settings as lancedb_settings
from holdfast.text import shown_url, without_secrets

PW = "s3cr3tw0rd"
PLACE = "127.0.0.1:1"
URLS = [
    f"redis://:{PW}@{PLACE}",
    f"redis://{PW}:{PW}@{PLACE}/0",
    f"redis://user:{PW}@{PLACE}/3?socket_timeout=1",
    f"rediss://user:{PW}@{PLACE}",
    f"valkey://:{PW}@{PLACE}",
    f"valkeys://:{PW}@{PLACE}",
    f"unix://user:{PW}@/nowhere/s.sock",
    f"redis+sentinel://:{PW}@{PLACE}/main",
    f"redis+sentinel://{PLACE}/main?sentinel_password={PW}",
    f"redis+cluster://:{PW}@{PLACE},127.0.0.1:2",
    f"redis://{PLACE}?password={PW}",
    f"redis://{PLACE}?username={PW}&password={PW}",
    f"redis://{PLACE}?password={PW}@{PW}",
    f"redis://:{PW}%40{PW}@{PLACE}",
    f"redis:/user:{PW}@{PLACE}",
    f"redis:user:{PW}@{PLACE}",
    f"redis:{PW}@{PLACE}",
    f"redis:{PW}",
    f"redis:///user:{PW}@{PLACE}",
    f"redis:////user:{PW}@{PLACE}",
    f"unix:///user:{PW}@/x",
    f"unix:user:{PW}@/x",
    f"redis//user:{PW}@{PLACE}",
    f"user:{PW}@{PLACE}",
    f":{PW}@{PLACE}",
    f"//user:{PW}@{PLACE}",
    f"redis://user:{PW}",
    f"redis://:{PW}",
    f"redis://:{PW}@",
    f"redis://:{PW}@{PLACE}:port",
    f"redis://:{PW}@{PLACE}/{PLACE}",
    f"redis://:{PW}/{PW}@{PLACE}",
    f"redis://:12/{PW}@{PLACE}",
    f"redis://:{PW}?{PW}@{PLACE}",
    f"redis://:{PW}#{PW}@{PLACE}",
    f"redis://:{PW}@{PW}@{PLACE}",
    f"redis://:{PW}@{PW}?{PW}@{PLACE}",
    f"redis://:[{PW}]@{PLACE}",
    f"redis://:{PW} {PW}@{PLACE}",
    f"redis://:{PW}\n{PW}@{PLACE}",
    f"redis://:{PW}\x00@{PLACE}",
    f"redis://:{PW}\ud800@{PLACE}",
    f"redis://{PLACE}?pasword={PW}",
    f"redis://{PLACE}?{PW}",
    f"rediss://:{PW}@{PLACE}?ssl_keyfile={PW}&ssl_certfile={PW}",
    f"redis+cluster://:{PW}@{PLACE},{PW}:port",
    f"redis+sentinel://:{PW}@{PLACE}",
    f"postgres://user:{PW}@{PLACE}/db",
    f"nosuch://user:{PW}@{PLACE}?x={PW}",
    f"sqlite:///nowhere/x.db?password={PW}",
    f"file:///nowhere?password={PW}",
    f"memory://{PW}:{PW}@x",
    f"user:p://{PW}@{PLACE}",
    f"redis://:{PW}@[::1]:1",
]


def texts_of(error):
    """Return what a log or a debugger shows of an error and of the errors that a traceback shows behind it."""
    found, seen = [repr(pickle.dumps(error))], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found += [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(found)


def uses(url, events):
    """Return every way in which a program passes a URL."""

    def blocking(given=url):
        with holdfast.connect(given, observer=events.append) as client:
            held = [repr(client), client.url, repr(client.lock("x")), repr(client._client.engine)]
            held.append(repr(client.lock("x").try_acquire()))
            return held

    async def awaited():
        async with await aio.connect(url, observer=events.append) as client:
            held = [repr(client), client.url, repr(client.lock("x"))]
            held.append(repr(await client.lock("x").try_acquire()))
            return held

    return [
        blocking,
        lambda: asyncio.run(awaited()),
        lambda: blocking(url.encode(errors="replace")),
        lambda: blocking([url]),
        lambda: [repr(config.settings(url))],
        lambda: [repr(lancedb_settings.read({"locking": {"mode": "redis", "url": url}}, "/nowhere"))],
    ]


def test_there_are_at_least_fifty():
    """The number that the work order of this test asked for."""
    assert len(set(URLS)) >= 50


@pytest.mark.finding("S8", "S12")
@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
def test_no_way_of_passing_a_url_shows_its_password(url, caplog, recwarn):
    """A mistake in the URL is the most common reason for an error that shows it."""
    caplog.set_level(logging.DEBUG)
    events, said, refused = [], [], 0
    for use in uses(url, events):
        try:
            said += use()
        except HoldfastError as error:
            refused += 1
            said.append(texts_of(error))
    told = "\n".join([*said, *map(repr, events), caplog.text, *(str(each.message) for each in recwarn)])

    assert refused > 0
    assert PW not in told


@pytest.fixture
def signals():
    """Restore the signals afterwards: `holdfast run` catches them until its process ends."""
    handlers = {number: signal.getsignal(number) for number in (*FORWARDED, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(-1)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(wakeup)


@pytest.mark.finding("S8", "S12")
@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("url", [url for url in URLS if "\x00" not in url and "\ud800" not in url])
def test_no_command_line_shows_the_password_of_its_url(url, capfd, monkeypatch):
    """Also not if the URL comes from the environment, or stands in the place of a name."""
    log = logging.getLogger("holdfast")
    monkeypatch.setattr(log, "propagate", log.propagate)
    for arguments in (
        ["ls", "--url", url],
        ["ls", "--url", url, "--json"],
        *(
            [["ls", "a", "b", url], ["ls", f"--ulr={url}"], ["ls", "--limit", url]]
            if "@" in url or "://" in url
            else []
        ),
    ):
        assert main(arguments) != 0
    monkeypatch.setitem(os.environ, "HOLDFAST_URL", url)
    assert main(["ls"]) != 0
    assert main(["run", "x", "--timeout", "0", "--", "true"]) != 0

    out, err = capfd.readouterr()
    assert err.count("\n") in (4, 7)
    assert PW not in out + err


@pytest.mark.finding("S8")
def test_a_url_is_shown_as_far_as_it_is_safe():
    """People need the host in an error; two engines must not look like one."""
    for url, shown in {
        "redis://user:pw@host:6379/3?socket_timeout=1": "redis://host:6379/3",
        "redis+sentinel://u:p@h1:1,h2,[::1]:3/main?password=a@b": "redis+sentinel://h1:1,h2,[::1]:3/main",
        "sqlite:///var/lib/me@home/x.db": "sqlite:///var/lib/me@home/x.db",
        "unix:///run/me@home/s.sock": "unix:///run/me@home/s.sock",
        "redis:///u:pw@h": "redis://h",
        "redis://u:pw": "redis://(not shown)",
        "redis://:a?b@h": "redis://(not shown)",
        "u:pw@h": "h",
        "localhost:6379": "localhost:6379",
        "redis://h\x1b[2J": "redis://(not shown)",
    }.items():
        assert shown_url(url) == shown
    assert without_secrets("unexpected (redis://u:pw@h)") == "unexpected h)"
