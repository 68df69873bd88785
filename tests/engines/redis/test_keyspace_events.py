"""Expired consumer sessions on one server: which are reported, the server's setting, and what is left after a close."""

import os
import shutil
import threading
import time

import pytest
from expiry_events import SETTING, WAIT_S, alive_key, expire, letters, subscribed, until_subscribed

from holdfast import Unavailable
from holdfast.engines.redis.notify_settings import missing
from holdfast.testing import eventually
from holdfast.testing.ports import LOOPBACK, Port
from holdfast.testing.servers import certificates
from tests.support.proxy import Proxy

ADVICE = ("+config|get +config|set", f"CONFIG SET {SETTING}", 'events="listen"', "do without events")
RIGHTS = ("+subscribe", "+info", "+select", "+client|setname", "resetchannels")
CHANNEL = "&__keyevent@0__:expired"


@pytest.fixture
def server_without_events(server):
    """A server that publishes no events: the default."""
    server.command("CONFIG", "SET", SETTING, "")
    yield server
    server.command("CONFIG", "SET", SETTING, "")


def gone(server, *keys):
    """Wait until these keys have expired."""
    eventually(lambda: server.command("EXISTS", *keys) == 0, WAIT_S, f"the end of {keys}")


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-expiries"]


@pytest.mark.parametrize("name", ["jobs", "a}b", "100%", "mq:live:x", "é {}"])
def test_an_expired_consumer_is_reported_with_its_queue(server_without_events, listen, name):
    """The listener builds the key as the scripts do, for every name."""
    listener = listen(server_without_events.url, ["another", name])

    expire(server_without_events, name.replace("%", "%25").replace("}", "%7D"), "0a1b")

    listener.until_expired((name, "0a1b"))
    assert listener.expired == [(name, "0a1b")]


def test_other_expired_keys_are_not_reported(server_without_events, listen):
    """A server publishes every expired key: the listener ignores all but the sessions of its queues."""
    listener = listen(server_without_events.url, ["q"])
    others = [
        alive_key("another queue", "t"),
        alive_key("q", "t", prefix="hf2:tenant"),
        alive_key("q", "t", prefix="hf3"),
        "hf2:{q}:queue",
        "hf2:{q}:queue:alive",
        "hf2:{q}:queue:result:t",
        "somebody else's",
    ]
    for key in others:
        server_without_events.command("SET", key, "", "PX", 30)
    gone(server_without_events, *others)

    expire(server_without_events, "q", "t")

    listener.until_expired(("q", "t"))
    assert listener.expired == [("q", "t")]


def test_only_the_database_of_the_client_is_listened_to(new_server, listen):
    """The channel contains the database number; consumers of other databases are not reported."""
    server = new_server()
    third, first = listen(f"{server.url}/3"), listen(server.url)

    expire(server, "q", "in 0")
    first.until_expired(("q", "in 0"))
    script = "redis.call('SELECT', 3) redis.call('SET', KEYS[1], '', 'PX', 50)"
    server.command("EVAL", script, 1, alive_key("q", "in 3"))
    third.until_expired(("q", "in 3"))

    assert third.expired == [("q", "in 3")]
    assert first.expired == [("q", "in 0")]


def test_a_namespace_has_consumers_of_its_own(server_without_events, listen):
    """The namespace is a part of every key."""
    listener = listen(f"{server_without_events.url}?namespace=tenant")

    expire(server_without_events, "q", "theirs")
    gone(server_without_events, alive_key("q", "theirs"))
    expire(server_without_events, "q", "ours", prefix="hf2:tenant")

    listener.until_expired(("q", "ours"))
    assert listener.expired == [("q", "ours")]


def test_it_goes_through_a_socket_file_with_a_password(new_server, listen):
    """The listener connects like every other connection."""
    server = new_server(unix=True, password="secret")
    listener = listen(server.url)

    expire(server, "q", "t")

    listener.until_expired(("q", "t"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is to be installed")
def test_it_goes_through_tls(server_without_events, listen, tmp_path):
    """Many events at once too: data that is already decrypted must not wait for a poll."""
    with Proxy("127.0.0.1", server_without_events.port, tls=certificates(tmp_path)) as proxy:
        listener = listen(proxy.url)
        script = "for i = 1, 500 do redis.call('SET', KEYS[1] .. i, '', 'PX', 100) end"
        server_without_events.command("EVAL", script, 1, alive_key("q", ""))
        listener.until_expired(*(("q", str(number)) for number in range(1, 501)))
        listener.close()


@pytest.mark.parametrize(
    ("flags_there", "lacking"),
    [("", "Ex"), ("K", "Ex"), ("E", "x"), ("x", "E"), ("A", "E"), ("AKE", ""), ("xE", ""), ("Kg$lE", "x"), ("ExK", "")],
)
def test_flags_are_compared_as_a_set(flags_there, lacking):
    """Servers return them in their own order, and A stands for most of them."""
    assert missing(flags_there) == lacking


@pytest.mark.acceptance("A1-16")
@pytest.mark.parametrize("before", ["", "K", "Kg$", "AKE", "Kx", "Ex", "El"])
def test_flags_are_added_and_none_is_removed(server_without_events, listen, before):
    """Other programs rely on theirs; a sufficient setting is not changed, and a change is an event."""
    server_without_events.command("CONFIG", "SET", SETTING, before)
    found = letters(server_without_events)

    listener = listen(server_without_events.url)

    now = letters(server_without_events)
    assert set(now) == set(found) | set(missing(found))
    assert listener.kinds() == ["setting_changed"] * (now != found) + ["events_subscribed"]
    assert all(repr(found) in detail for detail in listener.details("setting_changed"))
    assert listen(server_without_events.url).kinds() == ["events_subscribed"]
    expire(server_without_events, "q", "t")
    listener.until_expired(("q", "t"))
    listener.close()
    assert letters(server_without_events) == now


@pytest.mark.acceptance("A1-16")
def test_no_flag_is_missing_for_a_moment(server_without_events, listen):
    """Otherwise other programs would miss events. The server refuses an invalid flag."""
    server_without_events.command("CONFIG", "SET", SETTING, "Kg")
    with Proxy("127.0.0.1", server_without_events.port) as proxy:
        listener = listen(proxy.url)
        settings = [sent.words[3] for sent in proxy.sent if sent.words[:2] == (b"CONFIG", b"SET")]
        listener.close()

    assert settings[0] == b"?"
    assert [set(value.decode()) for value in settings[1:]] == [set("KgEx")]


@pytest.mark.acceptance("A1-16")
def test_the_listen_mode_changes_no_setting(server_without_events, listen):
    """It reports the missing flags and what to do; once an operator has added them, events arrive."""
    server_without_events.command("CONFIG", "SET", SETTING, "K")

    listener = listen(server_without_events.url, configure=False)

    assert letters(server_without_events) == "K"
    assert listener.kinds() == ["events_missing"]
    assert f"CONFIG SET {SETTING} KEx" in listener.details("events_missing")[0]
    server_without_events.command("CONFIG", "SET", SETTING, "KEx")
    expire(server_without_events, "q", "t")
    listener.until_expired(("q", "t"))


@pytest.fixture
def strict(server, new_server):
    """A server with a restricted user."""
    own = new_server(server.kind)

    def url(*rights):
        own.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *RIGHTS, *rights)
        return f"redis://app:pw@127.0.0.1:{own.port}"

    url.server = own
    return url


@pytest.mark.acceptance("A1-16")
@pytest.mark.parametrize("rights", [(CHANNEL,), (CHANNEL, "+config|get")], ids=["neither", "no right to change"])
def test_a_server_that_forbids_the_change_stays_unchanged(strict, rights, listen):
    """The start fails at once, and the error says what to do; the listener does not retry."""
    strict.server.command("CONFIG", "SET", SETTING, "Kg")
    found = letters(strict.server)

    with pytest.raises(Unavailable) as trouble:
        listen(strict(*rights))

    assert (trouble.value.reason, trouble.value.retryable) == ("no permission", False)
    assert [advice for advice in ADVICE if advice not in str(trouble.value)] == []
    assert letters(strict.server) == found
    assert (threads(), subscribed(strict.server)) == ([], 0)


@pytest.mark.acceptance("A1-16")
def test_a_server_without_config_is_an_error_that_says_so(new_server, listen):
    """Managed servers hide CONFIG. The listen mode works if the server is configured to publish events."""
    server = new_server(arguments=("--rename-command", "CONFIG", "", f"--{SETTING}", "Ex"))

    with pytest.raises(Unavailable) as trouble:
        listen(server.url)

    assert (trouble.value.reason, trouble.value.retryable) == ("failed", False)
    assert [advice for advice in ADVICE if advice not in str(trouble.value)] == []
    listener = listen(server.url, configure=False)
    assert listener.kinds() == ["events_subscribed"]
    expire(server, "q", "t")
    listener.until_expired(("q", "t"))


def test_the_documented_rights_are_enough_for_events(strict, listen):
    """To listen, the user needs the channel; to configure, also CONFIG GET and CONFIG SET."""
    configuring = listen(strict(CHANNEL, "+config|get", "+config|set"))
    listener = listen(strict(CHANNEL), configure=False)

    expire(strict.server, "q", "t")

    configuring.until_expired(("q", "t"))
    listener.until_expired(("q", "t"))


@pytest.mark.parametrize("configure", [False, True])
def test_without_the_right_to_the_channel_it_is_refused(strict, configure, listen):
    """No event would ever arrive, and an operator has to act: the start fails, and nothing was changed."""
    with pytest.raises(Unavailable) as trouble:
        listen(strict("+config|get", "+config|set"), configure=configure)

    assert trouble.value.reason == "no permission"
    assert CHANNEL in str(trouble.value)
    assert letters(strict.server) == ""
    assert threads() == []


def test_the_listen_mode_waits_for_an_unreachable_server(new_server, listen):
    """With `configure` the start must change the settings or fail; listening can begin later."""
    port = Port()
    url = f"redis://{LOOPBACK}:{port.number}"

    with pytest.raises(Unavailable) as trouble:
        listen(url)
    listener = listen(url, configure=False)

    assert trouble.value.reason == "unreachable"
    assert listener.kinds() == ["events_missing"]
    server = new_server(port=port, arguments=(f"--{SETTING}", "Ex"))
    until_subscribed([server])
    eventually(lambda: listener.kinds() == ["events_missing", "events_subscribed"], WAIT_S)
    expire(server, "q", "t")
    listener.until_expired(("q", "t"))


def test_a_restarted_server_is_configured_again(new_server, listen):
    """It has lost its setting: the listener restores it and has one subscription."""
    server = new_server()
    listener = listen(server.url)

    server.restart()

    until_subscribed([server])
    eventually(lambda: set(letters(server)) == {"E", "x"}, WAIT_S)
    expire(server, "q", "t")
    listener.until_expired(("q", "t"))
    configured = ["setting_changed", "events_subscribed"]
    assert listener.kinds() == [*configured, "events_missing", *configured]


def test_a_broken_connection_is_opened_again_once(server_without_events, listen):
    """However often it breaks, there is one subscription, and none after the close."""
    listener = listen(server_without_events.url)
    for number in range(3):
        server_without_events.command("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(lambda seen=number: listener.kinds().count("events_subscribed") == seen + 2, WAIT_S)
        until_subscribed([server_without_events])
    expire(server_without_events, "q", "t")
    listener.until_expired(("q", "t"))

    listener.expiries.close()

    until_subscribed([server_without_events], 0)
    assert threads() == []


@pytest.mark.parametrize("configure", [False, True])
def test_closing_does_not_wait_for_a_server_that_hangs(new_server, listen, configure):
    """The connection stands and the server does not answer; also while the listener reconnects."""
    server = new_server()
    listener = listen(server.url, configure=configure)
    server.freeze()
    next(iter(listener.expiries._subscriptions.values())).until_s = 0.0  # it would be asked in some seconds
    listener.expiries.reconnect()
    eventually(lambda: "events_missing" in listener.kinds(), WAIT_S, "word of its silence")

    began = time.monotonic()
    listener.expiries.close()
    took_s = time.monotonic() - began

    assert took_s < 5
    assert threads() == []
    server.thaw()
    until_subscribed([server], 0)


def test_it_can_be_closed_more_than_once_and_by_the_client(server_without_events, listen):
    """By its user, by the client, by both; and from inside the callback."""
    listener = listen(server_without_events.url)
    listener.expiries.close()
    listener.expiries.close()
    listener.engine.close()
    by_client = listen(server_without_events.url)
    by_client.engine.close()
    assert threads() == []

    told = []
    selfish = listen(server_without_events.url, on_end=lambda *what: told.append(what) or selfish.expiries.close())
    expire(server_without_events, "q", "t")

    eventually(lambda: told and not threads(), WAIT_S)
    until_subscribed([server_without_events], 0)


def test_no_event_is_reported_after_the_close(server_without_events, listen):
    """Also events that had already arrived are dropped."""
    listener = listen(server_without_events.url)
    listener.expiries.close()

    expire(server_without_events, "q", "t")
    gone(server_without_events, alive_key("q", "t"))

    assert listener.expired == []


def test_a_failing_callback_gets_the_next_event(server_without_events, listen, caplog):
    """Its error is logged; neither it nor an error of the observer ends the thread."""
    seen = []

    def fail(*what):
        seen.append(what)
        raise RuntimeError("on purpose")

    listen(server_without_events.url, on_end=fail, emit=fail)
    for token in ("1", "2"):
        expire(server_without_events, "q", token)
        eventually(lambda token=token: ("q", token) in seen, WAIT_S)

    assert "on purpose" in caplog.text


def test_a_forked_child_leaves_the_parents_listener_alone(server_without_events, listen):
    """The child inherits no thread and no subscription; it closes only its own copies."""
    listener = listen(server_without_events.url)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            listener.engine.forked()  # the client does that
            listener.expiries.close()
            listener.engine.close()
            code = 0 if not threads() and not listener.expiries._subscriptions else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    expire(server_without_events, "q", "t")
    listener.until_expired(("q", "t"))
    assert subscribed(server_without_events) == 1
    assert listener.kinds().count("events_missing") == 0


def test_a_closed_client_opens_no_listener(server_without_events, listen):
    """A closed client gets no events."""
    from holdfast import Closed

    listener = listen(server_without_events.url)
    listener.engine.close()

    with pytest.raises(Closed):
        listener.engine.watch_expiries(["q"], configure=False, on_end=print, emit=print)


def test_many_expiries_at_once_are_all_reported(server_without_events, listen):
    """Also if they arrive in one burst, and in parts of a read."""
    listener = listen(server_without_events.url)
    script = "for i = 1, 2000 do redis.call('SET', KEYS[1] .. i, '', 'PX', 100) end"

    server_without_events.command("EVAL", script, 1, alive_key("q", ""))

    eventually(lambda: len(listener.expired) >= 2000, 60, "all of them")
    assert set(listener.expired) == {("q", str(number)) for number in range(1, 2001)}
