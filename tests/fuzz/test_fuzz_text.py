"""Texts that users and other programs write: rates, URLs, package names, holders and the records of messages."""

import json
import os
from pathlib import Path

import pytest
from fuzzing import MIB, TEXTS, VALUES, bounded, filled, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast import InvalidConfig, InvalidName, config
from holdfast.contrib import npm
from holdfast.core.queue.codec import encoded, shown_body, shown_headers
from holdfast.engines import find_driver
from holdfast.engines.redis import address, queue
from holdfast.names import Holder
from holdfast.rules import limit

RATES = ["10", "/", " ", "per", "second", ";", ",", "1", "0", "h", "9" * 30, "٣", "\x00", "m"]
URLS = [
    "redis",
    "rediss",
    "unix",
    "sqlite",
    "file",
    "memory",
    "redis+sentinel",
    "redis+cluster",
    "valkey",
    "://",
    ":",
    "/",
    "//",
    "@",
    "?",
    "&",
    "=",
    "%",
    "%00",
    "%zz",
    "[",
    "]",
    "::1",
]
URLS += [
    "localhost",
    "6379",
    "99999",
    "db",
    "0",
    "ssl_cert_reqs",
    "none",
    "namespace",
    "socket_timeout",
    "-1",
    "nan",
    "#",
    ",",
    "é",
    "..",
    "user:p@ss",
]
URLS += [" ", "\x00", "\ud800", "x" * 300]
NAMES = ["@", "/", "a", "A", "..", ".", "1.2.3", "latest", "-", "~", " ", "\x00", "npm:", "%", "é", "\n", "file:", "^"]


@fuzz(150)
@given(st.one_of(filled(RATES), st.lists(st.sampled_from(RATES), max_size=8).map("".join), TEXTS, VALUES))
@example("1/" + " " * (MIB - 2))
@example("9" * 5000 + "/s")
@example(";" * MIB)
def test_a_rate_is_parsed_or_refused(text):
    """The parser answers at once, however long the text is."""
    with bounded():
        assert all(1 <= count <= limit.COUNT_MAX for count, _ in limit.rates(text))


@fuzz(200)
@given(st.one_of(filled(URLS), st.lists(st.sampled_from(URLS), max_size=9).map("".join), st.text(max_size=60), VALUES))
@example("redis:")
@example("redis://" + "a," * (MIB // 2))
@example("redis+sentinel://" + "[" * 1000)
@example("redis://h?" + "a=1&" * (MIB // 4))
def test_a_url_is_read_or_refused_before_any_io(text):
    """No error of a parser reaches the caller, and no socket or file is opened for a URL that is refused."""
    with bounded():
        found = config.settings(text, environ={})
        driver = find_driver(found.scheme, found.url)
        if driver.open.__module__ == "holdfast.engines.redis":
            address.namespace_of(found)
            address.location_of(found, address.topology_of(found))


@fuzz(150)
@given(st.one_of(filled(NAMES), st.lists(st.sampled_from(NAMES), max_size=8).map("".join), TEXTS, VALUES))
def test_a_package_name_is_parsed_or_refused(text):
    """A name that is accepted stays inside the directory of packages."""
    with bounded():
        try:
            spec = npm.parsed(text)
        except InvalidName:
            return
        inside = Path("/repo") / spec.name
        assert os.path.normpath(inside) == str(inside)


@fuzz(100)
@given(st.one_of(st.text(max_size=50), TEXTS, VALUES.map(json.dumps)))
@example("[" * MIB)
@example('{"host":' * 100_000)
def test_a_stored_holder_always_has_a_text(text):
    """`ls` shows the holder of a lease that another program wrote."""
    with bounded():
        holder = Holder.unpacked(text)
        assert isinstance(str(holder), str)
        assert isinstance(holder.info, dict)


@fuzz(150)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.lists(
            st.sampled_from([b"1 ", b"0 ", b"99999999999999999999 ", b"\n", b"5", b"x", b"\xff", b"9" * 5000]),
            max_size=16,
        ).map(b"".join),
        st.binary(min_size=1, max_size=4).map(lambda piece: piece * (MIB // len(piece))),
    )
)
@example(b"1 0 0 0 0 0\n" + b"9" * 5000 + b" 0 0 0\nx")
def test_a_stored_message_is_always_delivered_or_kept(raw):
    """Bytes that are no message become the body of one."""
    with bounded():
        text = raw.decode(errors="surrogateescape")
        message = queue._message("7", raw)
        dead = queue._dead_letter(text)
        assert isinstance(message.body, bytes)
        assert isinstance(dead.message.body, bytes)
        assert isinstance(shown_headers(message.headers), dict)
        shown_body(holdfast.core.queue.codec.checked_codec("json"), message)


@pytest.mark.finding("L11")
@fuzz(60)
@given(VALUES)
def test_a_body_is_encoded_or_refused_with_a_text(body):
    """The error about a body that cannot be encoded has a text, whatever the body is."""
    with bounded():
        encoded(holdfast.core.queue.codec.checked_codec("json"), body)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.finding("L11")
@pytest.mark.parametrize(
    "body", [json.loads("[" * 900 + "]" * 900), Unprintable(), {1: Unprintable()}], ids=["deep", "own", "inner"]
)
def test_the_error_about_any_body_has_a_text(body):
    """A value without a repr, or one that is nested too deeply, does not hide the rule that it breaks."""
    for _ in range(200):  # deeper than any stack
        body = [body]
    error = InvalidConfig("body", body, "the queue's codec cannot encode it")
    assert "cannot encode it" in str(error)
    assert "body=" in str(error)
