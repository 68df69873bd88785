"""Write docs/reference.md from the code: every public name with its signature, its defaults and its docstring.

    python tools/reference.py           write the page
    python tools/reference.py --check   write nothing; exit 1 if the page is out of date

The page describes `holdfast` and `holdfast.types`. A test checks that `holdfast.aio` has the same names and signatures.
A line of a docstring that begins with a parameter in backticks and a colon becomes an item of a list.
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
from holdfast import types
from holdfast.core.lease.lock import Unset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs") / "reference.md"
OUT_OF_DATE = 1
WIDTH = 100

INTRO = """# Reference

This page lists every name of `holdfast` and `holdfast.types`, with signatures, defaults and parameters. `make docs`
generates it from the code. The [guide](guide.md) shows how to use the parts; [errors](errors.md) describes the errors,
and [cli](cli.md) the command line.

`holdfast.aio` has the same names and signatures. There, methods that wait or send a command to the engine are
coroutines, and `with` is `async with`; `on_loss` may also be `"cancel"`. `Seconds` is an int, a float or a `timedelta`.
A timeout of `None` waits for ever, and 0 makes one decision. A parameter without a default is required; the default `…`
is the value that the object was made with.
"""
# The page begins with `connect` and the objects that it leads to.
FIRST = ("connect", "Holdfast", "Lock", "Lease", "LossEvent")
PARAMETER_LINE = re.compile(r"^\*{0,2}`\*{0,2}\w+`(?:(?:, | and )`\*{0,2}\w+`)*: ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check that it is up to date."""
    parser = argparse.ArgumentParser(description="Write docs/reference.md from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project that has the page (default: this one)")
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
    """Return the whole page."""
    everything = {name: getattr(holdfast, name) for name in holdfast.__all__}
    everything |= {name: getattr(types, name) for name in types.__all__}
    names = [*FIRST, *(name for name in everything if name not in FIRST)]
    classes = {name: everything[name] for name in names if inspect.isclass(everything[name])}
    values = {name: kind for name, kind in classes.items() if issubclass(kind, tuple) or is_dataclass(kind)}
    raised = {name: kind for name, kind in classes.items() if kind.__name__ in {"Reject", "Release", "Retry"}}
    objects = {
        name: kind for name, kind in classes.items() if name not in values and not issubclass(kind, BaseException)
    }
    parts = [INTRO, f"## connect\n\n{code(signature('connect', holdfast.connect))}\n\n{doc(holdfast.connect)}\n"]
    parts += [f"## {name}\n\n{doc(kind)}\n\n" + "\n".join(members_of(kind)) for name, kind in objects.items()]
    parts.append("## Outcomes that a handler raises\n\nA message's block or a worker catches these exceptions.\n")
    parts += [
        f"### {name}\n\n{code(signature(name, kind.__init__, returns=False))}\n\n{doc(kind)}\n"
        for name, kind in raised.items()
    ]
    parts.append("## Values\n\nPrograms read the fields by name and cannot change them.\n")
    parts += [f"### {name}\n\n{doc(kind)}\n\n" + "\n".join(fields_of(kind)) for name, kind in values.items()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def members_of(kind: type) -> Iterator[str]:
    """Yield the attributes of a class, then each method with its signature."""
    if hasattr(kind, "__enter__"):
        yield f"`with` returns {result(kind.__enter__)}.\n"
    known = attributes(kind)
    properties = {name: thing for name, thing in members(kind) if isinstance(thing, property)}
    if known or properties:
        yield "| attribute | meaning |\n|---|---|"
        yield from (f"| `{name}` | |" for name in known if name not in properties)
        yield from (f"| `{name}: {type_of(thing)}` | {summary(thing)} |" for name, thing in properties.items())
        yield ""
    for name, thing in members(kind):
        if inspect.isfunction(thing):
            yield f"{code(signature(name, thing))}\n\n{doc(thing)}\n"
    if "__call__" in vars(kind):
        yield f"{code(signature('__call__', kind.__call__))}\n\n{doc(kind.__call__)}\n"


def members(kind: type) -> list[tuple[str, object]]:
    """Return the public members of a class, by name."""
    hidden = internal(kind)
    return [
        (name, thing)
        for name, thing in inspect.getmembers_static(kind)
        if not name.startswith("_") and name not in hidden
    ]


def internal(kind: type) -> set[str]:
    """Return the names that are for the core only, though they have no underscore."""
    return {name for base in kind.__mro__ for name in vars(base).get("_internal", ())}


def attributes(kind: type) -> list[str]:
    """Return the public attributes that the constructors of a class set."""
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            source = inspect.getsource(constructor)
            found |= dict.fromkeys(re.findall(r"^\s+self\.([a-z]\w*)(?:: [^=]+)? = ", source, re.MULTILINE))
    return [name for name in found if name not in internal(kind)]


def fields_of(kind: type) -> Iterator[str]:
    """Yield the fields of a named tuple or data class, then its methods and properties."""
    defaults = getattr(kind, "_field_defaults", {})
    if is_dataclass(kind):
        defaults = {field.name: field.default for field in dataclass_fields(kind) if field.default is not MISSING}
    for name in getattr(kind, "_fields", None) or kind.__annotations__:
        default = f" = {defaults[name]!r}" if name in defaults else ""
        yield f"- `{name}: {annotation(kind.__annotations__.get(name, ''))}{default}`"
    for name, thing in members(kind):
        if inspect.isfunction(thing) and name in vars(kind) and not hasattr(tuple, name):
            if thing.__module__ == kind.__module__:
                yield f"- `{signature(name, thing)}`: {summary(thing)}"
        elif isinstance(thing, property):
            yield f"- `{name}: {type_of(thing)}`: {summary(thing)}"


def signature(name: str, thing: object, *, returns: bool = True) -> str:
    """Return a call as it is written, on several lines if one is too short."""
    words, starred = [], False
    for parameter in inspect.signature(thing).parameters.values():  # type: ignore[arg-type]
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        words.append(written(parameter))
    arrow = f" -> {result(thing).strip('`')}" if returns else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def written(parameter: inspect.Parameter) -> str:
    """Return one parameter with its type and default."""
    stars = str(parameter).partition(parameter.name)[0]
    text = f"{stars}{parameter.name}: {annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {'…' if isinstance(parameter.default, Unset) else repr(parameter.default)}"


def result(thing: object) -> str:
    """Return the type that a function returns, in backticks."""
    return f"`{annotation(inspect.signature(thing).return_annotation)}`"  # type: ignore[arg-type]


def type_of(thing: property) -> str:
    """Return the type of a property."""
    return annotation(getattr(thing.fget, "__annotations__", {}).get("return", ""))


def annotation(value: object) -> str:
    """Return an annotation as it stands in the code, without the parts that only tools need."""
    bare = getattr(value, "__forward_arg__", value)  # a named tuple wraps its annotations
    text = bare if isinstance(bare, str) else getattr(bare, "__name__", str(bare))
    return text.replace("| Unset ", "").replace("Unset | ", "").replace("_client.", "")


def code(text: str) -> str:
    """Return a text as a block of code."""
    return f"```\n{text}\n```"


def doc(thing: object) -> str:
    """Return the docstring of a thing, with its parameters as a list."""
    lines: list[str] = []
    in_list = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if PARAMETER_LINE.match(line):
            if lines and lines[-1] and not in_list:
                lines.append("")
            in_list = True
            lines.append(f"- {line}")
        elif in_list and line:
            lines.append(f"  {line.strip()}")
        else:
            in_list = False
            lines.append(line)
    return "\n".join(lines)


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
