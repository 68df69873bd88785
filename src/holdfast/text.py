"""Text for people: one function escapes what others wrote, one renders URLs, and one renders values.

Names, labels, reasons, keys and bodies may come from anywhere, and a URL may contain a password. This module renders
every log line, error, table and metric, so that no text forges a line, commands a terminal, or reveals a secret.
"""

from __future__ import annotations

NOT_SHOWN = "(not shown)"
# How deep a value from JSON may be nested, for people to see it.
DEPTH_MAX = 50
# The schemes of paths; a path may contain an @.
_PATHS = ("sqlite", "file", "unix")


def plain(value: object) -> str:
    """Return the text in one line, with every control, bidirectional, surrogate and invisible character escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown(value: object, limit: int = 80) -> str:
    """Return the repr of a value for a message, in one line: whole if short, its beginning if long."""
    try:
        text = plain(repr(value))
    except Exception:  # an error in the program's `__repr__` must not replace the error that shows the value
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def shown_error(error: BaseException) -> str:
    """Return the repr of an error. For a `UnicodeError`, leave out the data: its repr contains the whole body."""
    if isinstance(error, UnicodeError):
        return f"{type(error).__name__}({str(error)!r})"
    return repr(error)


def size_of(value: object) -> str:
    """Return what a body, a header or a result is, without its content: its type and its length."""
    sized = isinstance(value, str | bytes | bytearray | memoryview | list | tuple | dict)
    return f"({type(value).__name__}{f' of length {len(value)}' if sized else ''}, not shown)"  # type: ignore[arg-type]


def without_secrets(text: str) -> str:
    """Return the text with every URL in it as `shown_url` renders it."""
    import re  # noqa: PLC0415 - only for the errors of a command line

    return re.sub(r"\S*(://|@)\S*", lambda found: shown_url(found[0]), text)


def is_deep(value: object, most: int = DEPTH_MAX) -> bool:
    """Return whether a value from JSON is nested deeper than `most` levels, so that showing it may recurse too far."""
    level = [value]
    for _ in range(most):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for part in parts for each in part]
        if not level:
            return False
    return True


def shown_url(url: object) -> str:
    """Return the URL without user, password and options.

    Return only its scheme if the end of a password cannot be found.
    """
    import re  # noqa: PLC0415 - once per client

    scheme, found, rest = str(url).partition("://")
    if not found or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        scheme, found, rest = "", "", str(url)
    location = re.split("[?#]", rest, maxsplit=1)[0]
    options = rest[len(location) + 1 :]
    # Everything up to the last @ may be a password, with any character in it.
    if scheme.lower() not in _PATHS or not rest.startswith("/") or ":" in location.partition("@")[0]:
        location = location.rpartition("@")[2]
    host = r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]*)(:\d{1,5})?"
    hosts, _, path = location.partition("/")
    unclear = "@" in options and not re.match(r"\w+=", options)  # a password with a ? or a # in it
    if unclear or not re.fullmatch(f"{host}(,{host})*", hosts) or ("@" in path and ":" in path):
        location = NOT_SHOWN
    return plain(f"{scheme}{found}{location}")
