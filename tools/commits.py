"""Refuse commits whose subject is not `area: verb what` in at most 72 characters.

    python tools/commits.py    list the subjects that break the rule; exit 1 if there is one

The check begins after the newest of these commits: the last tag, the merge base with `main`, and the commit that added
this file. On `main` itself there is no merge base, so the check begins after one of the other two. It skips merge
commits. Without a git history (an unpacked archive, a shallow clone) it checks nothing, and prints that it skipped
this step.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
THIS_FILE = "tools/commits.py"
MAIN_BRANCHES = ("main", "origin/main")
MOST_CHARACTERS = 72
# An area is one or more lower-case names, such as `queue`, `core/lease` or `redis, sqlite`. The verb is lower case.
SUBJECT = re.compile(r"[a-z0-9][\w./-]*(?:, [a-z0-9][\w./-]*)*: [a-z][a-z-]* \S.*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the commits that break the rule, and return 1 if there is one."""
    parser = argparse.ArgumentParser(description="Check the subjects of the newest commits.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to look at (default: this one)")
    root = parser.parse_args(arguments).root
    missing = why_no_history(root)
    if missing:
        print(f"commits: skipped this step: {missing}")
        return 0
    problems = [
        f"commits: {commit[:10]} {subject!r}: {problem}"
        for commit, subject in commits_since(root, starts(root))
        if (problem := problem_of(subject))
    ]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    return 0


def problem_of(subject: str) -> str:
    """Return what is wrong with a subject, or an empty text."""
    if len(subject) > MOST_CHARACTERS:
        return f"it has {len(subject)} characters; the maximum is {MOST_CHARACTERS}. Move the reason into the body."
    if not SUBJECT.fullmatch(subject):
        return (
            "the subject must be `area: verb what`, for example `queue: keep the cause of Retry as the attempt's error`"
        )
    return ""


def why_no_history(root: Path) -> str:
    """Return why the history cannot be read, or an empty text."""
    top = git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return "this tree is no git checkout"
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        return "this is a shallow clone"
    if not git(root, "rev-parse", "--verify", "--quiet", "HEAD"):
        return "this checkout has no commit"
    return ""


def starts(root: Path) -> list[str]:
    """Return the commits that the check begins after, as far as they exist."""
    # On `main` the merge base is HEAD, and would hide every commit from the check.
    head = git(root, "rev-parse", "HEAD")
    bases = [base for branch in MAIN_BRANCHES if (base := git(root, "merge-base", "HEAD", branch)) != head]
    candidates = [
        git(root, "describe", "--tags", "--abbrev=0"),
        *bases,
        git(root, "log", "--diff-filter=A", "--format=%H", "--", THIS_FILE).rpartition("\n")[2],
    ]
    return [each for each in candidates if each]


def commits_since(root: Path, begin: list[str]) -> list[tuple[str, str]]:
    """Return the commits that none of the given ones contains, newest first, as (hash, subject)."""
    log = git(root, "log", "--no-merges", "--format=%H %s", "HEAD", *(f"^{each}" for each in begin))
    pairs = (line.partition(" ") for line in log.splitlines())
    return [(commit, subject) for commit, _, subject in pairs]


def git(root: Path, *words: str) -> str:
    """Return what a git command prints, or an empty text if it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
