"""Idempotency keys of webhook deliveries, one recipe per sender.

A recipe takes the request and its body and returns a key. The key contains the sender and the type of the event, so
that ids of different senders or event types do not collide. It ends with a digest of the content: a delivery with other
content is another event, even with the same id.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from holdfast.contrib.asgi.connection import Scope, header


def github(scope: Scope, body: bytes) -> str:
    """Return a key with the id of the delivery, which a redelivery repeats."""
    return _key("github", header(scope, "x-github-event"), header(scope, "x-github-delivery"), body)


def gitlab(scope: Scope, body: bytes) -> str:
    """Return a key with the idempotency key that GitLab repeats; without one, only the content identifies the event."""
    return _key("gitlab", header(scope, "x-gitlab-event"), header(scope, "idempotency-key"), body)


def slack(scope: Scope, body: bytes) -> str:  # noqa: ARG001 - the signature of all
    """Return a key with the event's id, which every retry repeats."""
    event = _read(body)
    return _key("slack", str(event.get("type", "")), str(event.get("event_id", "")), body)


def jira(scope: Scope, body: bytes) -> str:
    """Return a key with the identifier that Atlassian repeats; without one, only the content identifies the event."""
    event = _read(body)
    return _key("jira", str(event.get("webhookEvent", "")), header(scope, "x-atlassian-webhook-identifier"), body)


def linear(scope: Scope, body: bytes) -> str:
    """Return a key with the id of the delivery."""
    return _key("linear", header(scope, "linear-event"), header(scope, "linear-delivery"), body)


def content(scope: Scope, body: bytes) -> str:  # noqa: ARG001
    """Return a key of the content alone; the order of keys in JSON does not matter."""
    return _key("content", "", "", body)


def _key(sender: str, event: str, identity: str, body: bytes) -> str:
    try:
        canonical = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    except ValueError:
        canonical = body  # not JSON
    # The sender chooses the ids, so hash them: a name has a limited length and alphabet.
    event_digest = hashlib.sha256(f"{event}\n{identity}".encode()).hexdigest()[:16]
    return f"{sender}:{event_digest}:{hashlib.sha256(canonical).hexdigest()}"


def _read(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
