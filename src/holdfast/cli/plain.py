"""What others chose (names, labels, reasons) is shown as text: no control character of theirs reaches a terminal."""

from __future__ import annotations


def plain(value: object) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(value))
