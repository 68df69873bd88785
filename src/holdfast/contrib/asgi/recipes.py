"""What makes two deliveries the same, for each sender.

A recipe takes the request and its body and gives a key. It names the sender and the kind of event, so that ids of
different things never meet, and ends with a digest of the content: another content is another event, whatever its id.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from holdfast.contrib.asgi.connection import Scope, header


def github(scope: Scope, body: bytes) -> str:
    """The delivery's id, which a redelivery has too."""
    return _key("github", header(scope, "x-github-event"), header(scope, "x-github-delivery"), body)


def gitlab(scope: Scope, body: bytes) -> str:
    """The key that GitLab repeats with its retries, if it sends one; else the content alone: its ids are of objects."""
    return _key("gitlab", header(scope, "x-gitlab-event"), header(scope, "idempotency-key"), body)


def slack(scope: Scope, body: bytes) -> str:  # noqa: ARG001 - as every recipe
    """The event's id, which is the same in every retry."""
    event = _read(body)
    return _key("slack", str(event.get("type", "")), str(event.get("event_id", "")), body)


def jira(scope: Scope, body: bytes) -> str:
    """The identifier that Atlassian keeps over its retries; else the content alone."""
    event = _read(body)
    return _key("jira", str(event.get("webhookEvent", "")), header(scope, "x-atlassian-webhook-identifier"), body)


def linear(scope: Scope, body: bytes) -> str:
    """The delivery's id."""
    return _key("linear", header(scope, "linear-event"), header(scope, "linear-delivery"), body)


def content(scope: Scope, body: bytes) -> str:  # noqa: ARG001
    """Whatever has the same content is the same; the order of keys in JSON does not matter."""
    return _key("content", "", "", body)


def _key(sender: str, event: str, identity: str, body: bytes) -> str:
    try:
        canonical = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    except ValueError:
        canonical = body  # no JSON: as it is
    # Ids are chosen by others, so they are kept short and free of signs that no name may have.
    who = hashlib.sha256(f"{event}\n{identity}".encode()).hexdigest()[:16]
    return f"{sender}:{who}:{hashlib.sha256(canonical).hexdigest()}"


def _read(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
