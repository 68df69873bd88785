"""Two versions of Holdfast in one interleaved run: equal versions compare as equal, and a slower one is found."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from bench import before_after
from bench.before_after import AFTER, BEFORE, MEMORY_EACH, ROWS, Length, Tree, compare, judge, report, unpacked
from bench.environments import ROOT

TINY = Length(processes=1, batches=2, batch_s=0.01, leases=100, repeats=1)
OURS = Tree("ours", ROOT / "src")
HISTORY = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the source has no git history")


def changed(folder, module, text):
    """Return a copy of this version with more text at the end of one module."""
    shutil.copytree(OURS.packages, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "src" / "holdfast" / module).open("a", encoding="utf-8") as file:
        file.write(text)
    return Tree("changed", folder / "src")


def bench(*arguments):
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env=os.environ | {"QUICK": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_version_compared_with_itself_has_every_row_and_needs_the_same_memory():
    """Every workload runs on every engine; the memory of a lease does not depend on the load of the machine."""
    found = compare(OURS, OURS, TINY)
    held = [row for row in found["rows"] if row["workload"] == MEMORY_EACH]

    assert found["not_run"] == {}
    assert [(row["workload"], row["engine"]) for row in found["rows"][: len(ROWS)]] == [each[:2] for each in ROWS]
    for row in found["rows"][: len(ROWS)]:
        assert row["cpu"][BEFORE] >= row["client_cpu"][BEFORE] > 0
        assert row["wall"]["range"][0] <= row["wall"]["ratio"] <= row["wall"]["range"][1]
    assert [row["engine"] for row in held] == ["Redis, server", "Redis, client", "memory, client and engine"]
    assert all(row[BEFORE] > 100 and row["ratio"] == pytest.approx(1.0, abs=0.03) for row in held)


def test_a_slower_version_is_above_the_limit(tmp_path):
    """Each process runs the code of its own version: twice the work has twice the CPU time."""
    twice = "\n\n_once = RateLimiter.hit\nRateLimiter.hit = lambda *a, **k: (_once(*a, **k), _once(*a, **k))[1]\n"
    slower = changed(tmp_path, "blocking/limit.py", twice)

    found = compare(OURS, slower, TINY._replace(processes=2, batches=6), ["limit"])

    assert not judge(found, 1.03, 1.03)
    assert {row["verdict"] for row in found["rows"]} == {before_after.ABOVE}
    assert all(row["cpu"]["ratio"] > 1.5 for row in found["rows"])
    assert "2 rows: 0 within, 2 above, 0 unclear." in report(found)


def test_a_version_that_cannot_run_a_workload_is_named_with_the_reason(tmp_path):
    """No row disappears silently, and the comparison has not succeeded."""
    broken = changed(tmp_path, "blocking/limit.py", "\n\ndel RateLimiter.hit\n")

    found = compare(OURS, broken, TINY, ["limit"])

    assert found["rows"] == []
    assert not judge(found, 9.0, 9.0)
    assert "limit: an allowed hit, memory: after (changed): AttributeError" in report(found)


@pytest.mark.parametrize(
    ("cpu", "wall", "verdict"),
    [
        ((1.02, 1.0, 1.1), (1.03, 0.9, 1.2), "within"),
        ((1.05, 1.04, 1.1), (1.0, 0.9, 1.2), "above"),
        ((1.0, 0.9, 1.01), (1.2, 1.1, 1.3), "above"),
        ((1.04, 1.02, 1.1), (1.0, 0.9, 1.2), "unclear"),
    ],
)
def test_a_row_is_above_its_limit_only_with_its_whole_range(cpu, wall, verdict):
    """A ratio above the limit whose range includes the limit may be noise, and is no success either."""
    figures = [{"ratio": middle, "range": [low, high]} for middle, low, high in (cpu, wall)]
    found = {"rows": [{"workload": "lease", "cpu": figures[0], "wall": figures[1]}], "not_run": {}}

    assert judge(found, 1.03, 1.0) == (verdict == "within")
    assert found["rows"][0]["verdict"] == verdict


@HISTORY
def test_the_command_compares_a_commit_with_the_working_tree():
    """The figures name both versions; the exit code follows the verdicts."""
    run = bench("--before", "HEAD", "--workloads", "limit", "memory", "--json", "--at-most", "1.5")
    found = json.loads(run.stdout)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found[BEFORE] == head.stdout.strip()
    assert found[AFTER].removesuffix(" with changes") == found[BEFORE]
    assert [row["workload"] for row in found["rows"]] == ["limit"] * 2 + ["memory"] * 3
    assert run.returncode == (0 if all(row["verdict"] == "within" for row in found["rows"]) else 1)
    assert "limit: an allowed hit, Redis: 2 of 2" in run.stderr


@HISTORY
def test_an_unpacked_version_is_that_commit_and_does_not_stay():
    """The working tree and its list of worktrees stay as they are."""
    with unpacked("HEAD") as tree:
        assert (tree.packages / "holdfast" / "__init__.py").exists()

    assert not tree.packages.exists()


@HISTORY
def test_a_commit_that_does_not_exist_is_refused_before_anything_runs():
    """The error names the commit and what to give instead."""
    run = bench("--before", "no-such-commit")

    assert run.returncode == 2
    assert "cannot compare with 'no-such-commit': git knows no such commit. Give a commit, tag or branch" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("arguments", [("--json",), ("--before", "HEAD", "--only", "pair")])
def test_options_that_would_have_no_effect_are_refused(arguments):
    """An option of the other kind of run is an error, not a surprise."""
    run = bench(*arguments)

    assert run.returncode == 2
    assert "--before" in run.stderr.splitlines()[-1]
