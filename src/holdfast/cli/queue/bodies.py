"""Bodies of messages, and what a time was, for people and for programs."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

_SHOWN = 60


def for_programs(body: Any) -> dict[str, Any]:
    """What JSON cannot carry is given as its bytes."""
    if isinstance(body, bytes):
        return {"body": None, "base64": base64.b64encode(body).decode()}
    return {"body": body}


def for_people(body: Any, most: int = _SHOWN) -> str:
    """One line, and not a long one."""
    text = repr(body) if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def day(seconds: float) -> str:
    """A time since 1970, as people of this place write it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def ago(seconds: float) -> float:
    """How long ago that was, by this machine's calendar."""
    return max(0.0, time.time() - seconds)
