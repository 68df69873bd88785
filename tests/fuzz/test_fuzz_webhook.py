"""Any delivery ends in an answer: no error leaves the webhook middleware, and time and memory are bounded."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.contrib.asgi import Webhook, recipes
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.web_calls import INPUT_MAX_BYTES, bounded, handling, in_pieces, large, scopes

RECIPES = [recipes.github, recipes.gitlab, recipes.slack, recipes.jira, recipes.linear, recipes.content]
HEADERS = [b"x-github-event", b"x-github-delivery", b"idempotency-key", b"x-gitlab-event", b"linear-delivery"]
HEADERS += [b"linear-event", b"x-atlassian-webhook-identifier", b"content-length"]
UNITS = [
    b"[",
    b"{",
    b'{"":',
    b"[]",
    b"[],",
    b"[0],",
    b"{},",
    b'{"":0},',
    b'"",',
    b"0,",
    b"-0.1,",
    b"1e9,",
    b'"\\ud800"',
]
UNITS += [
    b'"',
    b"\\",
    b'\\"',
    b"null,",
    b"9",
    b" ",
    b"]",
    b"}",
    b'"a":',
    b'"a":1,',
    b"\xed\xa0\x80",
    b"\xff\xfe",
    b"NaN,",
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)
bodies = st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode()), large(UNITS))


def wide(item, before=b"[", after=b"0]"):
    return [before + item * ((INPUT_MAX_BYTES - 3) // len(item)) + after]


WORST = [
    wide(b"[" * 900 + b"]" * 900 + b","),
    wide(b"[0],"),
    wide(b"{},"),
    wide(b'{"":0},'),
    wide(b"0,"),
    wide(b'"":0,', b"{", b'"":0}'),
    wide(b"[", b"", b""),
    wide(b"9", b"", b""),
    wide(b'\\"', b'"', b""),
    wide(b"\\ud800", b'"', b'"'),
    [b"[" + b",".join(b"%d" % number for number in range(10_000, 160_000)) + b"]"],
    [b"{" + b",".join(b'"%x":0' % number for number in range(100_000)) + b"}"],
]
HOOK = {"type": "http", "method": "POST", "path": "/hook", "headers": [], "client": None}


def make(recipe):
    return lambda connection: Webhook(handling, connection, recipe, path="/hook", name="hooks", largest=INPUT_MAX_BYTES)


@pytest.mark.parametrize("pieces", WORST, ids=lambda pieces: repr(pieces[0][:12]))
def test_the_most_expensive_bodies_keep_the_bounds(pieces):
    """Each of them is the worst of its kind for a decoder of JSON."""
    [status] = bounded(make(recipes.content), (HOOK, pieces))
    assert status in (201, 400)


@fuzz(20)
@given(st.sampled_from(RECIPES), scopes(["/hook", "/hook/"], HEADERS), in_pieces(bodies))
@example(recipes.slack, HOOK, [b'{"type": "\\ud800"}'])
@example(recipes.github, {**HOOK, "headers": [(b"x-github-event", b"x" * 8193)]}, [b""])
@example(recipes.github, {**HOOK, "headers": [(b"content-length", b"9" * 5000)]}, [b""])
def test_any_delivery_is_handled_once_or_refused(recipe, scope, pieces):
    """The second of two equal deliveries never reaches the application, and a refusal is always a 4xx."""
    first, second = bounded(make(recipe), (scope, pieces), (scope, pieces))
    if scope["method"] == "POST" and scope["path"].rstrip("/") == "/hook":
        assert (first, second) in ((201, 200), (400, 400), (413, 413), (431, 431))
    else:
        assert (first, second) == (201, 201)


@fuzz(40)
@given(bodies, bodies)
@example(b'{"a":1,"a":2}', b'{"a":2}')
@example(b"1", b'[0.5,"1"]')
def test_two_bodies_are_one_event_only_if_they_are_equal_json(one, other):
    """The digest of the content forgets the order of keys and white space, and nothing else."""

    def key(body):
        try:
            return recipes.content({}, body)
        except Exception as error:  # a refusal: its status is tested above
            return type(error)

    def exact(body):
        try:
            return json.loads(
                body, parse_int=lambda t: ("n", t), parse_float=lambda t: ("n", t), object_pairs_hook=pairs
            )
        except (ValueError, RecursionError):
            return body

    def pairs(found):
        return "o", sorted(found, key=lambda pair: pair[0])

    if isinstance(key(one), str) and repr(exact(one)) != repr(exact(other)):
        assert key(one) != key(other)
    if b"\\" not in one and isinstance(exact(one), tuple | list):
        assert key(one) == key(b" " + one + b"\n")
