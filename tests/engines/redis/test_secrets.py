"""A password is in the connection and nowhere else: not in logs, errors, reprs or events."""

import logging
import pickle
import traceback

import pytest
import redis

import holdfast
from holdfast import InvalidConfig, Unavailable, config
from holdfast.testing import eventually
from holdfast.text import shown_url

SECRET = "s3cr3t-word"
SHAPES = {
    "password": f"redis://:{SECRET}@127.0.0.1:{{port}}/0",
    "user and password": f"redis://{SECRET}:{SECRET}@127.0.0.1:{{port}}",
    "option": f"redis://127.0.0.1:{{port}}?password={SECRET}",
    "with a slash": f"redis://:{SECRET}/{SECRET}@127.0.0.1:{{port}}",
    "with a slash after a number": f"redis://:12/{SECRET}@127.0.0.1:{{port}}",
    "with a hash": f"redis://:{SECRET}#{SECRET}@127.0.0.1:{{port}}",
    "with a question mark": f"redis://:{SECRET}?{SECRET}@127.0.0.1:{{port}}",
    "with an at": f"redis://:{SECRET}@{SECRET}@127.0.0.1:{{port}}",
    "with brackets": f"redis://:[{SECRET}]@127.0.0.1:{{port}}",
    "misspelt option": f"redis://127.0.0.1:{{port}}?pasword={SECRET}",
    "no number": f"redis://:{SECRET}@127.0.0.1:port",
    "no scheme": f":{SECRET}@127.0.0.1:{{port}}",
    "TLS": f"rediss://:{SECRET}@127.0.0.1:1",
    "socket file": f"unix://:{SECRET}@/nowhere/s.sock",
    "another scheme": f"postgres://:{SECRET}@127.0.0.1",
}


def all_texts(error):
    seen, told = set(), []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        told += [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # A traceback shows the lines of this file, which only name the constant.
    return "\n".join(told)


@pytest.mark.finding("S12")
@pytest.mark.parametrize("shape", SHAPES)
def test_no_url_shows_its_password(one_server, caplog, shape):
    """Also not if it is malformed: an unescaped character is the most common mistake."""
    url = SHAPES[shape].format(port=one_server.port)
    caplog.set_level(logging.DEBUG)
    events, said = [], []
    try:
        with holdfast.connect(url, observer=events.append) as client:
            said += [repr(client), client.url, repr(client.lock("x")), repr(client._client.engine)]
            client.lock("x").acquire(timeout=0).release()
    except (InvalidConfig, Unavailable) as error:
        said += [all_texts(error), repr(pickle.dumps(error))]
    try:
        said.append(repr(config.settings(url)))
    except InvalidConfig as error:
        said.append(all_texts(error))

    told = "\n".join([*said, *map(repr, events), caplog.text])
    assert SECRET not in told


@pytest.mark.finding("S12")
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_password_in_use_is_never_shown(new_server, place_on, face, caplog):
    """A whole session with a password: granted, refused, renewed, killed and gone."""
    server = new_server(password=SECRET)
    caplog.set_level(logging.DEBUG)
    place = place_on(server)
    client, other = place.connect(), place.connect()
    lease = client.lock("x", ttl=1).acquire()
    said = [repr(client), repr(lease), client.url, repr(client._client.transport), str(client.promise())]
    assert other.lock("x").try_acquire() is None
    place.until("renewed")
    server.kill()
    place.until("renewal_failed")
    eventually(lambda: lease.lost)
    with pytest.raises(holdfast.HoldfastError) as trouble:
        other.lock("x").acquire(timeout=0)

    said += [all_texts(trouble.value), caplog.text, *map(repr, place.events)]

    assert SECRET not in "\n".join(said)
    assert "127.0.0.1" in said[2]


@pytest.mark.parametrize("library", [redis.Redis, redis.asyncio.Redis])
def test_a_client_object_does_not_show_its_password(library):
    """Its settings are copied; texts show only the address."""
    theirs = library(host="127.0.0.1", port=1, password=SECRET, username=SECRET)
    settings = config.settings(theirs)
    client = holdfast.connect(theirs)
    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)
    said = [repr(settings), repr(client), client.url, all_texts(trouble.value)]
    client.close()

    assert SECRET not in "\n".join(said)
    assert "127.0.0.1:1" in str(trouble.value)
    assert client.url == "redis://127.0.0.1:1"


@pytest.mark.finding("S8")
@pytest.mark.parametrize("command", ["AUTH", "EVALSHA"])
def test_a_server_that_repeats_the_arguments_of_a_command_reveals_nothing(new_server, place_on, command, caplog):
    """A server without the command answers with its arguments: a password, or a message body."""
    caplog.set_level(logging.DEBUG)
    server = new_server(arguments=("--rename-command", command, "NO-SUCH-COMMAND"))
    place = place_on(server)
    user = f"user:{SECRET}@" if command == "AUTH" else ""
    client = place.connect(f"redis://{user}127.0.0.1:{server.port}")
    with pytest.raises(Unavailable, match=r"(?i)unknown command") as trouble:
        client.queue("q").publish(SECRET)

    assert SECRET not in "\n".join([all_texts(trouble.value), caplog.text, *map(repr, place.events)])


def test_a_url_is_shown_without_its_options():
    """Texts may show the address: scheme, host, port, path."""
    shown = shown_url("redis://user:pw@host:6379/3?socket_timeout=1")

    assert shown == "redis://host:6379/3"
    assert shown_url("sqlite:///var/lib/me@home/x.db") == "sqlite:///var/lib/me@home/x.db"
