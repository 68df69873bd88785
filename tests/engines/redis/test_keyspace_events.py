"""The ends of consumers, told by one server: whose are told, what becomes of its settings, and what is left after."""

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
def untold(server):
    """A server that tells of nothing, as they all begin."""
    server.command("CONFIG", "SET", SETTING, "")
    yield server
    server.command("CONFIG", "SET", SETTING, "")


def gone(server, *keys):
    """Wait until these keys have come to their end."""
    eventually(lambda: server.command("EXISTS", *keys) == 0, WAIT_S, f"the end of {keys}")


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-expiries"]


@pytest.mark.parametrize("name", ["jobs", "a}b", "100%", "mq:live:x", "é {}"])
def test_the_end_of_a_consumer_is_told_with_its_queue(untold, listen, name):
    """The key of a queue is found as the scripts make it, whatever the letters of its name."""
    listener = listen(untold.url, ["another", name])

    expire(untold, name.replace("%", "%25").replace("}", "%7D"), "0a1b")

    listener.until_expired((name, "0a1b"))
    assert listener.expired == [(name, "0a1b")]


def test_nothing_else_that_ends_is_told(untold, listen):
    """A server tells of every key of everybody: what is not the life of a consumer of these queues is passed over."""
    listener = listen(untold.url, ["q"])
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
        untold.command("SET", key, "", "PX", 30)
    gone(untold, *others)

    expire(untold, "q", "t")

    listener.until_expired(("q", "t"))
    assert listener.expired == [("q", "t")]


def test_only_the_database_of_the_client_is_listened_to(new_server, listen):
    """Its number is a part of the channel; consumers of another database are another matter."""
    server = new_server()
    third, first = listen(f"{server.url}/3"), listen(server.url)

    expire(server, "q", "in 0")
    first.until_expired(("q", "in 0"))
    script = "redis.call('SELECT', 3) redis.call('SET', KEYS[1], '', 'PX', 50)"
    server.command("EVAL", script, 1, alive_key("q", "in 3"))
    third.until_expired(("q", "in 3"))

    assert third.expired == [("q", "in 3")]
    assert first.expired == [("q", "in 0")]


def test_a_namespace_has_consumers_of_its_own(untold, listen):
    """It is a part of every key."""
    listener = listen(f"{untold.url}?namespace=tenant")

    expire(untold, "q", "theirs")
    gone(untold, alive_key("q", "theirs"))
    expire(untold, "q", "ours", prefix="hf2:tenant")

    listener.until_expired(("q", "ours"))
    assert listener.expired == [("q", "ours")]


def test_it_goes_through_a_socket_file_with_a_password(new_server, listen):
    """Addresses and passwords are those of every other connection."""
    server = new_server(unix=True, password="secret")
    listener = listen(server.url)

    expire(server, "q", "t")

    listener.until_expired(("q", "t"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is to be installed")
def test_it_goes_through_tls(untold, listen, tmp_path):
    """Many at once too: what was decrypted already is not waited for again."""
    with Proxy("127.0.0.1", untold.port, tls=certificates(tmp_path)) as proxy:
        listener = listen(proxy.url)
        script = "for i = 1, 500 do redis.call('SET', KEYS[1] .. i, '', 'PX', 100) end"
        untold.command("EVAL", script, 1, alive_key("q", ""))
        listener.until_expired(*(("q", str(number)) for number in range(1, 501)))
        listener.close()


@pytest.mark.parametrize(
    ("letters_there", "lacking"),
    [("", "Ex"), ("K", "Ex"), ("E", "x"), ("x", "E"), ("A", "E"), ("AKE", ""), ("xE", ""), ("Kg$lE", "x"), ("ExK", "")],
)
def test_letters_are_compared_as_a_set(letters_there, lacking):
    """Servers write them in an order of their own, and have a letter for most of them together."""
    assert missing(letters_there) == lacking


@pytest.mark.acceptance("A1-16")
@pytest.mark.parametrize("before", ["", "K", "Kg$", "AKE", "Kx", "Ex", "El"])
def test_letters_are_added_and_none_is_taken_out(untold, listen, before):
    """Others rely on theirs; whoever finds what it needs changes nothing, and a change is told."""
    untold.command("CONFIG", "SET", SETTING, before)
    found = letters(untold)

    listener = listen(untold.url)

    now = letters(untold)
    assert set(now) == set(found) | set(missing(found))
    assert listener.kinds() == ["setting_changed"] * (now != found) + ["events_subscribed"]
    assert all(repr(found) in detail for detail in listener.details("setting_changed"))
    assert listen(untold.url).kinds() == ["events_subscribed"]
    expire(untold, "q", "t")
    listener.until_expired(("q", "t"))
    listener.close()
    assert letters(untold) == now


@pytest.mark.acceptance("A1-16")
def test_no_letter_is_missing_for_a_moment(untold, listen):
    """Also on the way there: others would miss what is told meanwhile. What is no letter is refused by the server."""
    untold.command("CONFIG", "SET", SETTING, "Kg")
    with Proxy("127.0.0.1", untold.port) as proxy:
        listener = listen(proxy.url)
        settings = [sent.words[3] for sent in proxy.sent if sent.words[:2] == (b"CONFIG", b"SET")]
        listener.close()

    assert settings[0] == b"?"
    assert [set(value.decode()) for value in settings[1:]] == [set("KgEx")]


@pytest.mark.acceptance("A1-16")
def test_whoever_only_listens_changes_nothing(untold, listen):
    """It says what is missing and what to do; once somebody has done it, events come by themselves."""
    untold.command("CONFIG", "SET", SETTING, "K")

    listener = listen(untold.url, configure=False)

    assert letters(untold) == "K"
    assert listener.kinds() == ["events_missing"]
    assert f"CONFIG SET {SETTING} KEx" in listener.details("events_missing")[0]
    untold.command("CONFIG", "SET", SETTING, "KEx")
    expire(untold, "q", "t")
    listener.until_expired(("q", "t"))


@pytest.fixture
def strict(server, new_server):
    """A server with a user of few rights."""
    own = new_server(server.kind)

    def url(*rights):
        own.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *RIGHTS, *rights)
        return f"redis://app:pw@127.0.0.1:{own.port}"

    url.server = own
    return url


@pytest.mark.acceptance("A1-16")
@pytest.mark.parametrize("rights", [(CHANNEL,), (CHANNEL, "+config|get")], ids=["neither", "no right to change"])
def test_a_server_that_forbids_it_is_left_as_it_was(strict, rights, listen):
    """It is refused at once, with what to do about it; nobody is to try again until somebody has acted."""
    strict.server.command("CONFIG", "SET", SETTING, "Kg")
    found = letters(strict.server)

    with pytest.raises(Unavailable) as trouble:
        listen(strict(*rights))

    assert (trouble.value.reason, trouble.value.retryable) == ("no permission", False)
    assert [advice for advice in ADVICE if advice not in str(trouble.value)] == []
    assert letters(strict.server) == found
    assert (threads(), subscribed(strict.server)) == ([], 0)


@pytest.mark.acceptance("A1-16")
def test_a_server_without_the_command_is_told_as_such(new_server, listen):
    """Managed servers hide CONFIG. One that tells of keys by its own configuration can be listened to all the same."""
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
    """To listen: the channel. To configure: to read settings and to change them."""
    configuring = listen(strict(CHANNEL, "+config|get", "+config|set"))
    listener = listen(strict(CHANNEL), configure=False)

    expire(strict.server, "q", "t")

    configuring.until_expired(("q", "t"))
    listener.until_expired(("q", "t"))


@pytest.mark.parametrize("configure", [False, True])
def test_without_the_right_to_the_channel_it_is_refused(strict, configure, listen):
    """Nothing would ever be heard, and somebody has to act: it is told when it is opened, and nothing has changed."""
    with pytest.raises(Unavailable) as trouble:
        listen(strict("+config|get", "+config|set"), configure=configure)

    assert trouble.value.reason == "no permission"
    assert CHANNEL in str(trouble.value)
    assert letters(strict.server) == ""
    assert threads() == []


def test_a_server_that_is_away_is_waited_for_by_whoever_only_listens(new_server, listen):
    """Settings that were asked for are set when it is opened or not at all; listening can begin later."""
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


def test_a_server_that_starts_again_is_set_again(new_server, listen):
    """It has forgotten its settings: it gets them back, and is listened to once."""
    server = new_server()
    listener = listen(server.url)

    server.restart()

    until_subscribed([server])
    eventually(lambda: set(letters(server)) == {"E", "x"}, WAIT_S)
    expire(server, "q", "t")
    listener.until_expired(("q", "t"))
    configured = ["setting_changed", "events_subscribed"]
    assert listener.kinds() == [*configured, "events_missing", *configured]


def test_a_connection_that_breaks_is_opened_again_once(untold, listen):
    """However often: there is one subscription, and none when it is closed."""
    listener = listen(untold.url)
    for number in range(3):
        untold.command("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(lambda seen=number: listener.kinds().count("events_subscribed") == seen + 2, WAIT_S)
        until_subscribed([untold])
    expire(untold, "q", "t")
    listener.until_expired(("q", "t"))

    listener.expiries.close()

    until_subscribed([untold], 0)
    assert threads() == []


@pytest.mark.parametrize("configure", [False, True])
def test_the_end_does_not_wait_for_a_server_that_hangs(new_server, listen, configure):
    """Its connection stands and nothing is answered; also while it is being asked or dialled again."""
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


def test_it_can_be_closed_more_than_once_and_by_the_client(untold, listen):
    """By its owner, by the client, by both; and by whoever is just being told something."""
    listener = listen(untold.url)
    listener.expiries.close()
    listener.expiries.close()
    listener.engine.close()
    by_client = listen(untold.url)
    by_client.engine.close()
    assert threads() == []

    told = []
    selfish = listen(untold.url, on_end=lambda *what: told.append(what) or selfish.expiries.close())
    expire(untold, "q", "t")

    eventually(lambda: told and not threads(), WAIT_S)
    until_subscribed([untold], 0)


def test_nothing_is_told_after_the_end(untold, listen):
    """Whoever has closed it hears nothing more, also of what had come already."""
    listener = listen(untold.url)
    listener.expiries.close()

    expire(untold, "q", "t")
    gone(untold, alive_key("q", "t"))

    assert listener.expired == []


def test_an_owner_that_fails_hears_the_next_all_the_same(untold, listen, caplog):
    """Its error is logged; neither that nor one in its observer ends the thread."""
    seen = []

    def fail(*what):
        seen.append(what)
        raise RuntimeError("on purpose")

    listen(untold.url, on_end=fail, emit=fail)
    for token in ("1", "2"):
        expire(untold, "q", token)
        eventually(lambda token=token: ("q", token) in seen, WAIT_S)

    assert "on purpose" in caplog.text


def test_a_forked_child_has_none_and_leaves_the_parents_alone(untold, listen):
    """No thread and no subscription is inherited; what the child closes is its own."""
    listener = listen(untold.url)

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
    expire(untold, "q", "t")
    listener.until_expired(("q", "t"))
    assert subscribed(untold) == 1
    assert listener.kinds().count("events_missing") == 0


def test_a_client_that_is_closed_opens_none(untold, listen):
    """After the end there is nobody to listen for."""
    from holdfast import Closed

    listener = listen(untold.url)
    listener.engine.close()

    with pytest.raises(Closed):
        listener.engine.watch_expiries(["q"], configure=False, on_end=print, emit=print)


def test_many_ends_at_once_are_all_told(untold, listen):
    """Also when they come in one burst, and in parts of a read."""
    listener = listen(untold.url)
    script = "for i = 1, 2000 do redis.call('SET', KEYS[1] .. i, '', 'PX', 100) end"

    untold.command("EVAL", script, 1, alive_key("q", ""))

    eventually(lambda: len(listener.expired) >= 2000, 60, "all of them")
    assert set(listener.expired) == {("q", str(number)) for number in range(1, 2001)}
