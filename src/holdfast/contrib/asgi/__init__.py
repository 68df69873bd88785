"""ASGI middleware: rate limiting, webhook deduplication, and a readiness check, for any ASGI application.

    hf = Connection("redis://localhost")
    app = RateLimit(app, hf, "10/second; 100/minute")
    app = Webhook(app, hf, github, path="/hooks/github")

The middleware is plain ASGI, for Starlette, FastAPI and all other ASGI frameworks. It needs no other package.
"""

from holdfast.contrib.asgi.connection import Connection
from holdfast.contrib.asgi.ratelimit import RateLimit, by_address, by_header
from holdfast.contrib.asgi.readiness import Readiness
from holdfast.contrib.asgi.recipes import content, github, gitlab, jira, linear, slack
from holdfast.contrib.asgi.webhook import Webhook

__all__ = [
    "Connection",
    "RateLimit",
    "Readiness",
    "Webhook",
    "by_address",
    "by_header",
    "content",
    "github",
    "gitlab",
    "jira",
    "linear",
    "slack",
]
