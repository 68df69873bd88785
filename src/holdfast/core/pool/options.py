"""What is said about a pool and its items, checked before any input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import WHOLE_PPM
from holdfast.errors import InvalidConfig
from holdfast.names import checked_name, is_unicode

if TYPE_CHECKING:
    from collections.abc import Iterable

ITEMS_MAX = 1_000_000
TAG_MAX = 200


def checked_items(items: Iterable[str]) -> tuple[str, ...]:
    if isinstance(items, str | bytes):
        raise InvalidConfig("items", items, "it must be a list of names, not one text")
    try:
        names = tuple(items)
    except TypeError:
        raise InvalidConfig("items", items, "it must be a list of names") from None
    if len(names) > ITEMS_MAX:
        raise InvalidConfig("items", len(names), f"there may be at most {ITEMS_MAX}")
    seen = set()
    for name in names:
        checked_name(name, "an item")
        if name in seen:
            raise InvalidConfig("items", name, "it is there twice")
        seen.add(name)
    return names


def checked_share(tag: str | None, share: float) -> tuple[str, int]:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InvalidConfig("share", share, "it must be a number from 0 to 1")
    if tag is None:
        if share != 1:
            raise InvalidConfig("share", share, "a part of the pool is somebody's: give a tag with it")
        return "", WHOLE_PPM
    if not isinstance(tag, str) or not 0 < len(tag) <= TAG_MAX or not is_unicode(tag) or "\x00" in tag:
        rule = f"it must be text of 1 to {TAG_MAX} characters, without NUL or lone surrogates"
        raise InvalidConfig("tag", tag, rule)
    ppm = round(share * WHOLE_PPM)
    return ("", WHOLE_PPM) if ppm == WHOLE_PPM else (tag, ppm)


def checked_errors(kinds: Any) -> tuple[type[BaseException], ...]:
    found = kinds if isinstance(kinds, tuple) else (kinds,)
    for kind in found:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidConfig("cool_on", kind, "it must be an exception class, or a tuple of them")
    return found


def any_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and any(any_of(one, kinds) for one in error.exceptions)
