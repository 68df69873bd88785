"""The settings of a pool, and the checks of its arguments before any I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import WHOLE_PPM
from holdfast.errors import InvalidConfig
from holdfast.names import checked_name, is_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ITEMS_MAX = 1_000_000
TAG_MAX = 200
_REASON_MAX = 500


class PoolOptions:
    """The settings of a pool, semaphore or read-write lock that its leases use.

    A lease reads them at each request, because `resize` may change `permits` while it waits.
    """

    __slots__ = ("cool_on", "cooldown_ms", "expiry_cooldown_ms", "kind", "on_loss", "permits")

    def __init__(
        self,
        kind: str,
        *,
        permits: int = 0,
        cooldown_ms: int = 0,
        expiry_cooldown_ms: int = 0,
        cool_on: tuple[type[BaseException], ...] = (),
        on_loss: str | Callable[[Any], object] = "report",
    ) -> None:
        self.kind = kind
        self.permits = permits
        self.cooldown_ms = cooldown_ms
        self.expiry_cooldown_ms = expiry_cooldown_ms
        self.cool_on = cool_on
        self.on_loss = on_loss


class BorrowOptions(NamedTuple):
    """The settings of one borrow: those of the pool, and the share of the borrower's tag."""

    pool: PoolOptions
    tag: str = ""
    share_ppm: int = WHOLE_PPM


def checked_items(items: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the items; raise `InvalidConfig` or `InvalidName` for a wrong or repeated one."""
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
            raise InvalidConfig("items", name, "the list names it twice")
        seen.add(name)
    return names


def checked_share(tag: str | None, share: float) -> tuple[str, int]:
    """Return the tag and its share in millionths; the whole pool has no tag."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InvalidConfig("share", share, "it must be a number from 0 to 1, such as 0.5 for half of the items")
    if tag is None:
        if share != 1:
            raise InvalidConfig("share", share, "a share below 1 needs a tag")
        return "", WHOLE_PPM
    if not isinstance(tag, str) or not 0 < len(tag) <= TAG_MAX or not is_unicode(tag) or "\x00" in tag:
        rule = f"it must be text of 1 to {TAG_MAX} characters, without NUL or unpaired surrogates"
        raise InvalidConfig("tag", tag, rule)
    ppm = round(share * WHOLE_PPM)
    return ("", WHOLE_PPM) if ppm == WHOLE_PPM else (tag, ppm)


def checked_errors(kinds: Any) -> tuple[type[BaseException], ...]:
    """Return the exception classes of `cool_on` as a tuple."""
    found = kinds if isinstance(kinds, tuple) else (kinds,)
    for kind in found:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidConfig("cool_on", kind, "it must be an exception class, or a tuple of them")
    return found


def checked_reason(reason: object) -> str:
    """Return the reason for breaking a lease."""
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {_REASON_MAX} characters without unpaired surrogates, for the borrower to read"
        raise InvalidConfig("reason", reason, rule)
    return reason


def any_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether the error, or an error inside an exception group, is of these classes."""
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and any(any_of(member, kinds) for member in error.exceptions)
