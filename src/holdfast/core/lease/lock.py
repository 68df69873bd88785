"""The part of a lock object that both faces share: its settings, its name template, and its open `with` blocks.

A lock object only acquires leases. This module counts the nested blocks of a `reentrant` lock, per thread or task; the
engine sees one lease.
"""

from __future__ import annotations

import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.clock import Seconds, timeout_ns, ttl_ms
from holdfast.core.inspection import lease_info
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import checked_name, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase
    from holdfast.errors import NotAcquired

TTL_S: Final = 30.0


class Unset:
    """The default of a parameter that falls back to the lock's own setting."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


REPORT: Final = "report"
# What a decorated function does if the lock is held until the timeout.
RAISE: Final = "raise"
SKIP: Final = "skip"


class LeavingBlock(NamedTuple):
    """A `with` block that is being left: the thread or task, its nesting depth, and the lease to release.

    The lease is `None` if an outer block still holds it.
    """

    caller: object
    depth: int
    lease: LeaseBase | None


class LockBase:
    """The settings of a lock, checked before any I/O, and its open `with` blocks."""

    _internal = frozenset(("new_lease",))
    _lease: type[LeaseBase]
    # Most locks never change these defaults, and programs make many locks for one use: class attributes are cheap.
    _reentrant = False
    _on_loss: str | Callable[[Any], object] = REPORT
    _confirm: str | None = None
    _busy = RAISE
    _label: str | None = None
    _template = True  # a field in braces in the name must be filled in
    _locks_by_name: MutableMapping[str, Any] = MappingProxyType({})  # type: ignore[assignment] # of a decorator
    _entered: dict[object, list[LeaseBase]] = MappingProxyType({})  # type: ignore[assignment] # by thread or task

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds,
        timeout: Seconds | None,
        reentrant: bool,
        on_loss: str | Callable[[Any], object],
        policies: tuple[str, ...],
        confirm: str | None = None,
        label: str | None = None,
        template: bool = True,
        busy: str = RAISE,
    ) -> None:
        self.name = checked_name(name)
        self._client = client
        self._ttl_ms = ttl_ms(ttl)
        self._timeout_ns = None if timeout is None else timeout_ns(timeout)
        if reentrant:
            self._reentrant = True
        if on_loss is not REPORT:
            self._on_loss = _checked_policy(on_loss, policies)
        if confirm is not None:
            self._confirm = checked_confirm(client, confirm)
        if label is not None:
            self._label = label
        if not template:
            self._template = False
        if busy != RAISE:
            self._busy = _checked_busy(busy)

    def __repr__(self) -> str:
        return f"<lock {self.name!r} on {self._client.url}>"

    def new_lease(self) -> LeaseBase:
        """Return a lease with a new token, which nothing has requested yet."""
        return self._lease(*self._fields())

    def _fields(self) -> tuple[Any, ...]:
        """Return the arguments of a new lease."""
        if "{" in self.name and self._template:
            refuse_unfilled(self.name)
        client = self._client
        holder, packed = client.holder, client.packed
        if self._label is not None:
            holder = this_process(self._label, holder.info)
            packed = holder.packed()
        on_loss = None if self._on_loss is REPORT or not callable(self._on_loss) else self._on_loss
        return (client, self.name, self._ttl_ms, holder, packed, on_loss, self._confirm is not None)

    def _timeout_of(self, timeout: Seconds | Unset | None) -> int | None:
        return self._timeout_ns if isinstance(timeout, Unset) else timeout_ns(timeout)

    def _reentrant_lease(self, caller: object) -> LeaseBase | None:
        """Return the lease under which this thread or task may enter again; raise `LeaseLost` if it is lost.

        A forked child gets `LeaseLost` too: its thread has the id of the parent's thread, but holds no lease.
        """
        stack = self._entered.get(caller)
        if not stack or not self._reentrant:
            return None
        stack[-1].check()
        return stack[-1]

    def _enter(self, caller: object, lease: LeaseBase) -> None:
        entered: dict[object, list[LeaseBase]] = self.__dict__.setdefault("_entered", {})
        entered.setdefault(caller, []).append(lease)

    def _depth(self, caller: object) -> int:
        """Return in how many blocks of this lock the thread or task is."""
        return len(self._entered.get(caller, ()))

    def _block_to_leave(self, caller: object) -> LeavingBlock:
        """Return the block that is about to end. Changes nothing."""
        stack = self._entered.get(caller)
        if not stack and not self._reentrant and self._entered:
            # Fixtures and generators enter a block in one task and leave it in another: end the newest block.
            caller, stack = next(reversed(self._entered.items()))
        if not stack:
            raise RuntimeError(f"{self!r}: this thread or task leaves a block that it has not entered")
        return LeavingBlock(caller, len(stack), None if stack[-1] in stack[:-1] else stack[-1])

    def _block_ended(self, block: LeavingBlock | None, caller: object) -> LeavingBlock:
        """Record that the block has ended, in any way. Idempotent, because an interrupt may hit the first call."""
        block = block or self._block_to_leave(caller)
        if block.lease is not None:
            block.lease.end()
        self._restore_depth(block.caller, block.depth - 1)
        return block

    def _restore_depth(self, caller: object, depth: int) -> None:
        stack = self._entered.get(caller)
        if stack is not None:
            del stack[depth:]
            if not stack:
                self._entered.pop(caller, None)

    def _name_from_arguments(self, work: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
        """Return the function that names the lock of each call of `work`. A lock lives as long as a call uses it."""
        self.__dict__.setdefault("_locks_by_name", weakref.WeakValueDictionary())
        return name_from_arguments(self.name, work)

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of a lock with the same settings and another name."""
        return {
            "ttl": self._ttl_ms / 1000,
            "timeout": None if self._timeout_ns is None else self._timeout_ns / 1e9,
            "reentrant": self._reentrant,
            "on_loss": self._on_loss,
            "confirm": self._confirm,
            "template": False,  # the arguments of a call may contain braces
        } | ({} if self._busy == RAISE else {"busy": self._busy})

    async def _is_locked(self) -> bool:
        """Return whether an acquire would have to wait now."""
        if "{" in self.name and self._template:
            refuse_unfilled(self.name)
        info = await lease_info(self._client, self.name)
        return info.holder is not None or bool(info.waiters)

    def _skips(self, busy: NotAcquired) -> bool:
        """Return whether a call of the decorated function is skipped; if so, emit the event."""
        if self._busy != SKIP:
            return False
        self._client.emit("skipped", busy.name, busy.fence, busy.waited, detail=str(busy))
        return True


def _checked_policy(on_loss: str | Callable[[Any], object], policies: tuple[str, ...]) -> str | Callable[[Any], object]:
    if callable(on_loss):
        if is_coroutine_function(on_loss):
            raise InvalidConfig("on_loss", on_loss, "it must be a plain function, because it is called and not awaited")
        return on_loss
    if on_loss == "cancel" and on_loss not in policies:
        rule = "only asyncio can cancel a task: use holdfast.aio, or pass a function, which is called with the lease"
        raise InvalidConfig("on_loss", on_loss, rule)
    if on_loss not in policies:
        raise InvalidConfig(
            "on_loss", on_loss, f"it must be {' or '.join(policies)}, or a function, which is called with the lease"
        )
    return on_loss


def _checked_busy(busy: str) -> str:
    if busy not in (RAISE, SKIP):
        raise InvalidConfig("busy", busy, f"it must be {RAISE} or {SKIP}")
    return busy


def checked_confirm(client: Client, confirm: str) -> str:
    """Return the checked value of `confirm`: which servers must confirm a grant before it counts."""
    if confirm != "replicas":
        raise InvalidConfig("confirm", confirm, "it must be 'replicas', or None to leave it out")
    if Capability.REPLICAS not in client.engine.capabilities:
        raise InvalidConfig("confirm", confirm, f"{client.engine.name} has no replicas")
    return confirm


def is_coroutine_function(work: object) -> bool:
    """Return whether calling `work` returns an awaitable."""
    import inspect  # noqa: PLC0415 - slow to import, and few need it

    called = type(work).__call__ if callable(work) else None  # an object with a __call__ method
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(called)


def refuse_generator(work: Callable[..., Any]) -> None:
    """Raise `InvalidConfig` for a generator: its body runs when it is iterated, long after the lease was released."""
    import inspect  # noqa: PLC0415 - slow to import, and only decorators need it

    if not callable(work):
        raise InvalidConfig("function", work, "it must be callable: pass the function itself, without calling it")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        rule = "the body of a generator would run without the lease; acquire the lease inside it"
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)


def refuse_coroutine(work: Callable[..., Any]) -> None:
    """Raise `InvalidConfig` for a coroutine function: the blocking face awaits nothing."""
    refuse_generator(work)
    if is_coroutine_function(work):
        raise InvalidConfig("function", getattr(work, "__qualname__", work), "a coroutine function needs holdfast.aio")


def refuse_plain(work: Callable[..., Any]) -> None:
    """Raise `InvalidConfig` for a plain function, in the asyncio face, before any call of it.

    A lambda and an object with `__call__` may return an awaitable; `awaitable` checks what they return.
    """
    import functools  # noqa: PLC0415 - as below
    import inspect  # noqa: PLC0415 - slow to import, and few need it

    while isinstance(work, functools.partial):
        work = work.func
    refuse_generator(work)
    named = (inspect.isfunction(work) or inspect.ismethod(work)) and work.__name__ != "<lambda>"
    if named and not inspect.iscoroutinefunction(work):
        raise InvalidConfig("function", work.__qualname__, "a plain function needs the blocking face")


def awaitable(work: Callable[..., Any], returned: Any) -> Any:
    """Return what `work` returned; raise `InvalidConfig` if it cannot be awaited."""
    import inspect  # noqa: PLC0415 - as above

    if not inspect.isawaitable(returned):
        rule = (
            f"it returned {type(returned).__name__}, which cannot be awaited: a plain function needs the blocking face"
        )
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)
    return returned


def refuse_unfinished(work: Callable[..., Any], result: object) -> None:
    """Raise `InvalidConfig` for a result that must still be awaited or iterated: it would run without the lease."""
    if any(hasattr(result, each) for each in ("__await__", "gi_frame", "ag_frame")):
        rule = f"it returned {type(result).__name__}, whose body would run without the lease"
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)


def refuse_unfilled(name: str) -> None:
    """Raise `InvalidName` for a name with a field, such as `r/{day}`: all days would share one lock."""
    import re  # noqa: PLC0415 - few names contain a brace

    field = re.search(r"(?<!{)(?:{{)*{([A-Za-z_][\w.\[\]]*)(?:![rsa])?(?::[^{}]*)?}", name)
    if field is not None:
        rule = (
            f"it is a template; use it as a decorator of a function with the argument {field[1]!r}, or fill it in first"
        )
        raise InvalidName(name, rule)


def name_from_arguments(template: str, work: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """Return a function that makes a name from the arguments of a call: `"report/{day}"` uses the argument `day`.

    Different texts of the fields never make the same name: in every field except the last, the characters between
    fields are percent-encoded. Raise `InvalidName` already at decoration if the template names an argument that `work`
    does not have, or has fields without a separator between them.
    """
    import inspect  # noqa: PLC0415 - slow to import, and only decorators need it
    import string  # noqa: PLC0415

    signature = inspect.signature(work)
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise_if_of_signal(error)
        raise InvalidName(template, f"it is not a valid template: {error}") from None
    texts, fields = [""], []  # fields, and the texts before, between and after them
    for text, field, spec, conversion in parts:
        texts[-1] += text
        if field is not None:
            root = field.split(".")[0].split("[")[0]
            if root not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise InvalidName(template, f"the function has no argument {root!r}; it has {known}")
            fields.append(f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}")
            texts.append("")
    between = texts[1:-1]
    if not all(any(not char.isalnum() and char != "%" for char in text) for text in between):
        raise InvalidName(
            template, "it needs a separator, such as /, between two fields: other calls would share names"
        )
    escapes = {ord(char): "".join(f"%{byte:02X}" for byte in char.encode()) for char in "".join(between) + "%"}
    escapes = {char: escape for char, escape in escapes.items() if not chr(char).isalnum()}

    def name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if not fields:
            return texts[0]
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        filled = [field.format(**bound.arguments) for field in fields]
        for field, value in zip(fields, filled, strict=True):
            if value.startswith("<") and " at 0x" in value:
                rule = f"the text of {field} is an address in memory, which no two objects share: name a field of it"
                raise InvalidName(template, rule)
        filled[:-1] = [value.translate(escapes) for value in filled[:-1]]
        return checked_name("".join(part for pair in zip(texts, [*filled, ""], strict=True) for part in pair))

    return name
