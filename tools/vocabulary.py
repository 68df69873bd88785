"""Show where the tree still uses words that the glossary replaced, and class names that are defined twice.

    python tools/vocabulary.py            list every banned word by file, with line numbers; exit 1 if there is one
    python tools/vocabulary.py --summary  list the number of uses per file only
    python tools/vocabulary.py --shrink   lower the counts in tests/vocabulary_allowed.toml to today's uses

The scan covers the text files in `src`, `docs` and `README.md`, and the names of those files. It splits identifiers at
underscores and capitals and compares whole words in lower case: `MainRoof` contains `main` and `roof`. Some banned
words are also plain English; the scan looks for those in the identifiers of Python and Lua code only. The words and
their replacements are in tools/vocabulary.toml.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = Path("tests") / "vocabulary_allowed.toml"
SCANNED = ("src", "docs", "README.md")

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BANNED = frozenset(word for words in WORDS["banned"].values() for word in words)
BANNED_IN_NAMES = frozenset(word for words in WORDS["banned_in_names"].values() for word in words)
EXCEPTIONS = re.compile("|".join(WORDS["exceptions"].values()))
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
LUA_COMMENT_OR_STRING = re.compile(r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)

# A class may have the same name in both places of a pair: one for each face.
FACE_PAIRS = (
    ("src/holdfast/blocking/", "src/holdfast/aio/"),
    ("src/holdfast/guards/", "src/holdfast/aio/guards.py"),
    ("src/holdfast/contrib/lancedb/blocking.py", "src/holdfast/contrib/lancedb/aio.py"),
)


class Use(NamedTuple):
    """One use of a banned word."""

    file: str
    line: int
    word: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the remaining uses, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Show the words that the glossary replaced.")
    parser.add_argument("--summary", action="store_true", help="show the number of uses per file only")
    parser.add_argument("--shrink", action="store_true", help="lower the counts of the allow-list to today's uses")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to scan (default: this one)")
    parser.add_argument("only", nargs="*", help="show files below these paths only")
    options = parser.parse_args(arguments)
    if options.shrink:
        write_allowed(options.root, shrunk(allowed_uses(options.root), counts(find_uses(options.root))))
        return 0
    found = [use for use in find_uses(options.root) if not options.only or use.file.startswith(tuple(options.only))]
    show(found, summary=options.summary)
    doubles = duplicate_classes(options.root)
    for name, places in sorted(doubles.items()):
        print(f"class {name} is defined in {', '.join(places)}")
    print(f"{len(found)} uses of banned words; {len(doubles)} class names are defined more than once")
    return 1 if found or doubles else 0


def show(found: list[Use], *, summary: bool) -> None:
    """Print the uses of each file."""
    by_file: dict[str, list[Use]] = {}
    for use in found:
        by_file.setdefault(use.file, []).append(use)
    for file, uses in sorted(by_file.items()):
        words = Counter(use.word for use in uses)
        print(f"{file}: {len(uses)} ({', '.join(f'{word} {times}' for word, times in words.most_common())})")
        if not summary:
            for use in uses:
                print(f"    {file}:{use.line}: {use.word}")


def find_uses(root: Path = ROOT) -> list[Use]:
    """Return every use of a banned word in the scanned files."""
    uses: list[Use] = []
    for name in scanned_files(root):
        uses += (Use(name, 0, word) for word in words_of(EXCEPTIONS.sub(" ", name)) if word in BANNED)
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        uses += uses_in(name, text)
    return uses


def uses_in(name: str, text: str) -> Iterator[Use]:
    """Yield the banned words of one file's text."""
    # An exception keeps its line breaks, so that line numbers stay right.
    plain = EXCEPTIONS.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
    for number, line in enumerate(plain.splitlines(), start=1):
        yield from (Use(name, number, word) for word in words_of(line) if word in BANNED)
    for number, identifier in identifiers(name, text):
        yield from (Use(name, number, word) for word in words_of(identifier) if word in BANNED_IN_NAMES)


def identifiers(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the names in Python or Lua code, each with its line number."""
    if name.endswith(".py"):
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.NAME:
                    yield token.start[0], token.string
        except (tokenize.TokenError, SyntaxError):
            return
    elif name.endswith(".lua"):
        code = LUA_COMMENT_OR_STRING.sub(lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(code.splitlines(), start=1):
            yield from ((number, found) for found in re.findall(r"[A-Za-z_]\w*", line))


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words, and identifiers at underscores and capitals."""
    return [word.lower() for word in WORD.findall(text)]


def scanned_files(root: Path) -> list[str]:
    """Return the project's files in `src`, `docs` and `README.md`, without those that git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SCANNED],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names: Iterable[str] = [name for name in listing.stdout.split("\0") if name and (root / name).is_file()]
    else:  # an unpacked archive has no git
        files = [file for top in SCANNED for file in [root / top, *(root / top).rglob("*")] if file.is_file()]
        names = (file.relative_to(root).as_posix() for file in files if "__pycache__" not in file.parts)
    return sorted(set(names))


def duplicate_classes(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the class names that `src` defines several times, except the pairs of the two faces.

    A class inside a function is private to it and does not count.
    """
    places: dict[str, list[str]] = {}
    for name in scanned_files(root):
        if name.startswith("src/") and name.endswith(".py"):
            for node in classes_of(ast.parse((root / name).read_text(encoding="utf-8"), filename=name)):
                places.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1 and not is_face_pair(found)}


def classes_of(node: ast.AST) -> Iterator[ast.ClassDef]:
    """Yield the classes below a node, without those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from classes_of(child)


def is_face_pair(places: list[str]) -> bool:
    """Tell whether a class is defined once in the blocking face and once in the asyncio face."""
    return any(
        len(places) == len(pair) and all(any(place.startswith(face) for place in places) for face in pair)
        for pair in FACE_PAIRS
    )


def counts(uses: list[Use]) -> dict[str, dict[str, int]]:
    """Count the uses per file and word."""
    counted: dict[str, dict[str, int]] = {}
    for use in uses:
        words = counted.setdefault(use.file, {})
        words[use.word] = words.get(use.word, 0) + 1
    return counted


def allowed_uses(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return the allow-list: for each file, how often each banned word may still occur."""
    return tomllib.loads((root / ALLOWED).read_text(encoding="utf-8"))


def shrunk(allowed: dict[str, dict[str, int]], today: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Lower each count of the allow-list to today's, and drop entries without uses."""
    lower = {
        file: {word: min(times, today.get(file, {}).get(word, 0)) for word, times in words.items()}
        for file, words in allowed.items()
    }
    return {file: kept for file, words in lower.items() if (kept := {word: n for word, n in words.items() if n})}


def write_allowed(root: Path, allowed: dict[str, dict[str, int]]) -> None:
    """Write the allow-list."""
    lines = ["# Uses of banned words that are still allowed. Counts only shrink: python tools/vocabulary.py --shrink"]
    for file, words in sorted(allowed.items()):
        lines += ["", f'["{file}"]', *(f"{word} = {times}" for word, times in sorted(words.items()))]
    (root / ALLOWED).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
