"""Idempotency keys of webhook deliveries, one recipe per sender.

A recipe takes the request and its body and returns a key. The key contains the sender and a digest of the id, the type
and the content of the event: a delivery with other content is another event, even with the same id. `Webhook` adds the
method, path and query of the request.
"""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any

from holdfast.contrib.asgi.connection import RefusedError, Scope, digest, header

# Above this size, the bytes of a body are its content: parsing JSON costs up to 50 times its size in memory.
PARSED_MAX_BYTES = 1024 * 1024
# JSON has no floats here, because each number stays text. So a bare float can mark numbers and objects.
_NUMBER, _OBJECT = 0.5, 0.25


def github(scope: Scope, body: bytes) -> str:
    """Return a key with the id of the delivery, which a redelivery repeats."""
    return _key("github", header(scope, "x-github-event"), header(scope, "x-github-delivery"), body)


def gitlab(scope: Scope, body: bytes) -> str:
    """Return a key with the idempotency key that GitLab repeats; without one, only the content identifies the event."""
    return _key("gitlab", header(scope, "x-gitlab-event"), header(scope, "idempotency-key"), body)


def slack(scope: Scope, body: bytes) -> str:  # noqa: ARG001 - the signature of all
    """Return a key of the content, which contains the event's id and type; every retry repeats it."""
    return _key("slack", "", "", body)


def jira(scope: Scope, body: bytes) -> str:
    """Return a key with the identifier that Atlassian repeats; the content contains the type of the event."""
    return _key("jira", "", header(scope, "x-atlassian-webhook-identifier"), body)


def linear(scope: Scope, body: bytes) -> str:
    """Return a key with the id of the delivery."""
    return _key("linear", header(scope, "linear-event"), header(scope, "linear-delivery"), body)


def content(scope: Scope, body: bytes) -> str:  # noqa: ARG001
    """Return a key of the content alone; the order of keys in JSON does not matter."""
    return _key("content", "", "", body)


def _key(sender: str, event: str, identity: str, body: bytes) -> str:
    """Return the key. The sender chooses the ids, so hash them: a name has a limited length and alphabet."""
    return f"{sender}:{digest(event, identity, *_canonical(body))}"


def _canonical(body: bytes) -> tuple[str, bytes]:
    """Return the kind and the content of a body: JSON with sorted keys, or its bytes if it is large or not JSON.

    Nothing else of the JSON changes: every digit of a number and every repeated key of an object stays.
    """
    if len(body) > PARSED_MAX_BYTES:
        return "bytes", body
    numbers: dict[str, tuple[float, str]] = {}  # equal numbers share one entry, to save memory

    def number(text: str) -> tuple[float, str]:
        return numbers.setdefault(text, (_NUMBER, text))

    try:
        tree = json.loads(body, parse_int=number, parse_float=number, object_pairs_hook=_sorted)
        return "json", json.dumps(tree, separators=(",", ":")).encode()
    except ValueError:
        return "bytes", body
    except RecursionError:
        raise RefusedError(400, "the JSON of the body is nested too deeply") from None


def _sorted(pairs: list[tuple[str, Any]]) -> tuple[Any, ...]:
    return (_OBJECT, *sorted(pairs, key=itemgetter(0)))
