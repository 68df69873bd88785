"""`holdfast registry`: show the owners of keys, and take a key from its owner by force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import codes, errors, output, prompts
from holdfast.cli.connect import connect
from holdfast.cli.lazy import CommandGroup
from holdfast.cli.options import Json, Url, Yes, duration
from holdfast.cli.output import plain, print_line
from holdfast.core.registry.mailbox import checked_successor
from holdfast.core.registry.registry import RegistryEntry
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, NotAcquired, NotFound

if TYPE_CHECKING:
    from holdfast.blocking import Registry

_COLUMNS = ("key", "owner", "label", "group", "owned", "left", "fence")

app = CommandGroup(
    "Show the owners of the keys of a registry, and take a key by force.\n\n"
    "\b\nExample:\n  holdfast registry ls conversations"
)

RegistryName = Annotated[str, typer.Argument(help="The name of the registry.", metavar="NAME")]
Key = Annotated[str, typer.Argument(help="The key of an entry: a user, an address, a conversation.", metavar="KEY")]


@app.command("ls")
def list_entries(
    name: RegistryName,
    prefix: Annotated[
        str, typer.Argument(help="Only keys that begin with this text.", metavar="PREFIX", show_default=False)
    ] = "",
    group: Annotated[str | None, typer.Option(help="Only keys of this group.", show_default=False)] = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List the keys that have an owner, with owner and age. This command reads an index and scans nothing.

    \b
    Example:
      holdfast registry ls conversations --group ann
    """
    with connect(url, Capability.REGISTRY) as hf:
        found = hf.registry(name).list(prefix, group=group)
    if as_json:
        output.print_json({"registry": name, "entries": [_entry_json(entry) for entry in found]})
    elif found:
        output.console().print(output.table(_COLUMNS, map(_row, found), right=("owned", "left", "fence")))
    else:
        output.console().print("no key has an owner")
    return codes.OK


@app.command()
def show(name: RegistryName, key: Key, url: Url = None, as_json: Json = False) -> int:
    """Show the owner of a key, and the members that joined it. Exit code 66: the key has no owner.

    \b
    Example:
      holdfast registry show conversations 42
    """
    with connect(url, Capability.REGISTRY) as hf:
        registry = hf.registry(name)
        entry, members = _entry(registry, key), registry.members(key)
    if as_json:
        output.print_json({"registry": name, **_entry_json(entry), "members": members})
    else:
        output.console().print(output.facts([*_facts(entry), ("joined", ", ".join(members) or "none")]))
    return codes.OK


@app.command()
def take(
    name: RegistryName,
    key: Key,
    reason: Annotated[str, typer.Option("--reason", help="Why: the owner reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Take a key from its owner by force, so that another can claim it: the fence grows, the owner gets LeaseLost.

    Safe only where the resource compares fences: the owner may continue to work until its next renewal.

    \b
    Example:
      holdfast registry take conversations 42 --reason "server 7 is stuck"
    """
    if not reason:
        raise InvalidConfig("reason", reason, "it must be text, for the owner to read")
    with connect(url, Capability.REGISTRY) as hf:
        registry = hf.registry(name)
        entry = _entry(registry, key)
        if not yes and not prompts.confirm_force([*_facts(entry), ("reason", reason)], "owner", "Take it?"):
            return errors.report_cancelled(as_json=as_json, name=f"{name}/{key}")
        # Pass the fence, to take the key only from the owner that the prompt showed.
        run(registry._break_claim(key, reason, entry.fence))
    if as_json:
        output.print_json({"registry": name, "taken": _entry_json(entry), "reason": reason})
    else:
        owner = f"{entry.owner.host}:{entry.owner.pid}"
        print_line(
            f"{plain(key)!r} is taken from {owner}, fence {entry.fence}; the next process that claims it gets it"
        )
    return codes.OK


@app.command("hand-off")
def hand_off(
    name: RegistryName,
    key: Key,
    to: Annotated[str, typer.Option("--to", help="The label of the server that becomes the owner of the key.")],
    within: Annotated[float, duration("How long no other server can claim the key.")] = 10.0,
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Take a key from its owner and reserve it for another server: the owner gets LeaseLost, the fence grows.

    Safe only where the resource compares fences: the owner may continue to work until its next renewal.

    \b
    Example:
      holdfast registry hand-off conversations 42 --to "server 2"
    """
    checked_successor(to, within)
    with connect(url, Capability.REGISTRY) as hf:
        registry = hf.registry(name)
        entry = _entry(registry, key)
        if not yes and not prompts.confirm_force([*_facts(entry), ("to", to)], "owner", "Hand it off?"):
            return errors.report_cancelled(as_json=as_json, name=f"{name}/{key}")
        run(registry._break_claim(key, f"handed off to {to}", entry.fence))
        # This command owns the key for a moment, so that no other process claims it in between.
        claimed = registry.claim(key)
        if isinstance(claimed, RegistryEntry):
            raise NotAcquired(f"{name}/{key}", holder=str(claimed.owner), fence=claimed.fence)
        with claimed:
            claimed.hand_off(to, within)
    if as_json:
        output.print_json({"registry": name, "taken": _entry_json(entry), "to": to, "within": within})
    else:
        print_line(f"{plain(key)!r} is reserved for {plain(to)!r} for {output.span(within)}")
    return codes.OK


def _entry(registry: Registry, key: str) -> RegistryEntry:
    entry = registry.owner(key)
    if entry is None:
        raise NotFound(f"{registry.name}/{key}", "owner")
    return entry


def _entry_json(entry: RegistryEntry) -> dict[str, Any]:
    owner = entry.owner
    return {
        "key": entry.key,
        "owner": {"host": owner.host, "pid": owner.pid, "start": owner.start, "label": owner.label},
        "info": entry.info,
        "group": entry.group,
        "since": entry.seconds,
        "remaining": entry.remaining,
        "fence": entry.fence,
    }


def _row(entry: RegistryEntry) -> tuple[object, ...]:
    owner = f"{entry.owner.host}:{entry.owner.pid}"
    times = output.span(entry.seconds), output.span(entry.remaining)
    return (entry.key, owner, entry.owner.label, entry.group, *times, entry.fence)


def _facts(entry: RegistryEntry) -> list[tuple[str, object]]:
    """Return the facts about an entry, for people."""
    lines: list[tuple[str, object]] = [
        ("key", entry.key),
        ("owner", f"{entry.owner.host}, process {entry.owner.pid}"),
        ("label", entry.owner.label or "-"),
        ("since", f"{output.span(entry.seconds)} ago"),
        ("remaining", f"{output.span(entry.remaining)} unless it is renewed"),
        ("fence", entry.fence),
        ("group", entry.group or "-"),
    ]
    return [*lines, ("info", entry.info)] if entry.info else lines
