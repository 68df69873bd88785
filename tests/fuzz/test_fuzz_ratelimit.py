"""The rate limit middleware counts or refuses any request: no error leaves it, and time and memory are bounded."""

import ipaddress

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.contrib.asgi import RateLimit, by_address, by_header
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.web_calls import bounded, handling, scopes

HEADERS = [b"authorization", b"x-user", b"AUTHORIZATION", b"cookie"]
KEYS = {
    "address": by_address,
    "verified": by_header("Authorization", lambda value: value),
    "refused": by_header("authorization", lambda _value: None),
    "own": lambda scope: b"".join(value for _, value in scope["headers"]).decode("utf-8", "surrogateescape"),
}
SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}


@fuzz(30)
@given(st.sampled_from(sorted(KEYS)), scopes(["/", "/a"], HEADERS))
@example("own", {**SCOPE, "headers": [(b"x", b"\xed\xa0\x80")]})
@example("verified", {**SCOPE, "headers": [(b"authorization", b"x" * 9000)]})
@example("address", {**SCOPE, "client": ("\ud800\n\x1b[0m" * 300, 1)})
def test_any_request_is_counted_or_refused(which, scope):
    """The second equal request is refused by the limit, or both by the maximum of a header."""

    def make(connection):
        return RateLimit(handling, connection, "1/hour", name="x" * 200, key=KEYS[which])

    first, second = bounded(make, *[(scope, [])] * 2)
    assert (first, second) in ((201, 429), (431, 431))


@fuzz(20)
@given(scopes(["/"], HEADERS))
def test_any_refused_websocket_gets_its_close_code(scope):
    """1013 for a used-up limit, 1008 for a header above the maximum."""

    def make(connection):
        return RateLimit(handling, connection, "1/hour", name="sockets", key=KEYS["verified"])

    first, second = bounded(make, (scope, []), ({**scope, "type": "websocket"}, []))
    assert (first, second) in ((201, 1013), (431, 1008))


@fuzz(50)
@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1), st.text(max_size=30))
def test_all_addresses_of_a_network_have_one_key_and_other_networks_another(address, host, zone):
    """Only the first 64 bits of an IPv6 address tell clients apart."""
    neighbour = ipaddress.IPv6Address(int(address) >> 64 << 64 | host)

    def key(text):
        return by_address({"client": (text, 1)})

    if address.ipv4_mapped is None and neighbour.ipv4_mapped is None:
        assert key(str(address)) == key(f"{neighbour}%{zone}")
        assert key(str(address)) != key(str(ipaddress.IPv6Address(int(address) ^ 1 << 64)))
