"""Make docs/reference.md from the code: every public name with its signature, its defaults and its first sentence.

    python tools/reference.py           write the page
    python tools/reference.py --check   write nothing; exit 1 if the page is out of date

It is made of what is imported, so it cannot say what the code does not do; `holdfast.aio` has the same names, which a
test compares.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.core.lease.lock import Unset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs") / "reference.md"
OUT_OF_DATE = 1

INTRO = """# Reference

Every name of `holdfast`, with signatures and defaults. This page is made from the code by `make docs`. How the parts
are used is in the [guide](guide.md); the errors are in [errors](errors.md); the command line is in [cli](cli.md).

`holdfast.aio` has the same names and signatures. What waits or asks the engine is awaited there, and `with` is
`async with`; `on_loss` may be `"cancel"`, too. `Seconds` are an int, a float or a `timedelta`. A timeout of `None`
waits for ever, 0 is one decision. A parameter without a default must be given; `…` means: as the object was made.
"""
# What is made by `connect` and its answer comes first; answers that hold data come last.
FIRST = ("connect", "Holdfast", "Lock", "Lease", "LossEvent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description="Make docs/reference.md from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project whose page it is (default: this one)")
    options = parser.parse_args(arguments)
    page, text = options.root / PAGE, rendered()
    if not options.check:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"reference: {PAGE} is out of date; run `make docs`", file=sys.stderr)
        return OUT_OF_DATE
    return 0


def rendered() -> str:
    """The whole page."""
    names = [*FIRST, *(name for name in holdfast.__all__ if name not in FIRST)]
    things = {name: getattr(holdfast, name) for name in names}
    classes = {name: thing for name, thing in things.items() if inspect.isclass(thing)}
    data = {name: thing for name, thing in classes.items() if issubclass(thing, tuple) or is_dataclass(thing)}
    used = {name: thing for name, thing in classes.items() if name not in data and not issubclass(thing, BaseException)}
    parts = [INTRO, f"## connect\n\n```\n{signature('connect', holdfast.connect)}\n```\n\n{said(holdfast.connect)}\n"]
    parts += [f"## {name}\n\n{said(thing)}\n\n" + "\n".join(of_class(thing)) for name, thing in used.items()]
    parts.append("## What is answered\n\nFields can be read by name, and none can be changed.\n")
    parts += [f"### {name}\n\n{said(thing)}\n\n" + "\n".join(fields(thing)) for name, thing in data.items()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def of_class(kind: type) -> Iterator[str]:
    """The attributes, then each method with its signature."""
    if hasattr(kind, "__enter__"):
        yield f"`with` gives {result(kind.__enter__)}.\n"
    known = attributes(kind)
    properties = {name: thing for name, thing in members(kind) if isinstance(thing, property)}
    if known or properties:
        yield "| attribute | |\n|---|---|"
        yield from (f"| `{name}` | |" for name in known if name not in properties)
        yield from (f"| `{name}: {given(one)}` | {said(one, whole=False)} |" for name, one in properties.items())
        yield ""
    for name, thing in members(kind):
        if inspect.isfunction(thing):
            yield f"```\n{signature(name, thing)}\n```\n\n{said(thing)}\n"
    if "__call__" in vars(kind):
        yield f"```\n{signature('__call__', kind.__call__)}\n```\n\n{said(kind.__call__)}\n"


def members(kind: type) -> list[tuple[str, object]]:
    return [(name, thing) for name, thing in inspect.getmembers_static(kind) if not name.startswith("_")]


def attributes(kind: type) -> list[str]:
    """What each object is given when it is made."""
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        made = vars(base).get("__init__")
        if inspect.isfunction(made):
            found |= dict.fromkeys(re.findall(r"^\s+self\.([a-z]\w*) = ", inspect.getsource(made), re.MULTILINE))
    return list(found)


def fields(kind: type) -> Iterator[str]:
    """The fields of a named tuple, or of a data class."""
    defaults = getattr(kind, "_field_defaults", {})
    if is_dataclass(kind):
        defaults = {field.name: field.default for field in dataclass_fields(kind) if field.default is not MISSING}
    for name in getattr(kind, "_fields", None) or kind.__annotations__:
        ours = kind.__annotations__.get(name, "")
        default = defaults.get(name, inspect.Parameter.empty)
        yield f"- `{name}: {annotation(ours)}{'' if default is inspect.Parameter.empty else f' = {default!r}'}`"
    for name, thing in members(kind):
        if inspect.isfunction(thing) and not hasattr(tuple, name) and thing.__module__ == kind.__module__:
            if not name.startswith("_") and name in vars(kind):
                yield f"- `{signature(name, thing)}`: {said(thing, whole=False)}"
        elif isinstance(thing, property):
            yield f"- `{name}: {given(thing)}`: {said(thing, whole=False)}"


def signature(name: str, thing: object) -> str:
    """As it is called: on several lines where one is too short."""
    words, starred = [], False
    for parameter in inspect.signature(thing).parameters.values():  # type: ignore[arg-type]
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(of_parameter(parameter))
    gives = result(thing).strip("`")
    line = f"{name}({', '.join(words)}) -> {gives}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f") -> {gives}"


def of_parameter(parameter: inspect.Parameter) -> str:
    stars = str(parameter).partition(parameter.name)[0]
    text = f"{stars}{parameter.name}: {annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    shown = "…" if isinstance(parameter.default, Unset) else repr(parameter.default)
    return f"{text} = {shown}"


def result(thing: object) -> str:
    return f"`{annotation(inspect.signature(thing).return_annotation)}`"  # type: ignore[arg-type]


def given(thing: property) -> str:
    return annotation(getattr(thing.fget, "__annotations__", {}).get("return", ""))


def annotation(written: object) -> str:
    """As it stands in the code, without what only tools need."""
    bare = getattr(written, "__forward_arg__", written)  # so a named tuple keeps what was written
    text = bare if isinstance(bare, str) else getattr(bare, "__name__", str(bare))
    return text.replace("| Unset ", "").replace("Unset | ", "").replace("_client.", "")


def said(thing: object, *, whole: bool = True) -> str:
    """The docstring; its first sentences where there is room for no more. Of a face that repeats it, the original's."""
    text = (
        " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()) if not whole else inspect.getdoc(thing) or ""
    )
    return text.replace("|", "\\|") if not whole else text


if __name__ == "__main__":
    sys.exit(main())
