"""The self-test: the named checker catches each mutant, and none reports the unmodified client."""

from __future__ import annotations

import pytest

from chaos.checks import INVARIANTS
from chaos.mutant_rounds import mutants_by_name
from chaos.mutants import MUTATIONS
from chaos.mutants.patching import put, rewrite
from chaos.selftest import rounds_of, run_mutants, run_unmodified
from holdfast.commands import ReleaseLease
from holdfast.core.lease import lease
from holdfast.testing import servers
from tests.support import wallclock

SEED = 1
MUTANTS = mutants_by_name(SEED)
RUNNABLE = {name: mutant for name, mutant in MUTANTS.items() if mutant.round.engine != "redis" or servers.available()}
ROUNDS = rounds_of(list(RUNNABLE.values()))

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {run.mutant.name: run for run in run_mutants(list(RUNNABLE.values()), tmp_path_factory.mktemp("mutants"))}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    return dict(run_unmodified(ROUNDS, tmp_path_factory.mktemp("right")))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_its_checker(runs, name):
    """Otherwise a campaign without violations would mean nothing."""
    if name not in RUNNABLE:
        pytest.skip(servers.missing())
    run = runs[name]
    if run.not_run:
        pytest.skip(f"not run: {wallclock.missing() or run.not_run}")

    assert run.killed, f"{name} was not caught by {MUTANTS[name].caught_by}, but by {run.caught_by or 'nobody'}"
    assert run.shown, "a violation shows the part of the history that proves it"


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=lambda number: f"{ROUNDS[number].name}-{number}")
def test_the_unmodified_client_passes_every_checker_in_the_same_rounds(verdicts, number):
    """A checker with false alarms is as useless as one that finds nothing."""
    verdict = verdicts[ROUNDS[number]]
    shown = [str(one) for found in verdict.violations.values() for one in found]

    assert verdict.holds, f"seed {SEED}, {ROUNDS[number]}\n" + "\n".join(shown)


def test_a_mutant_that_finds_nothing_to_change_is_an_error():
    """Otherwise moving a function would turn a mutant into the unmodified client without notice."""
    with pytest.raises(AttributeError):
        put(lease, "no_such_function", None)
    with pytest.raises(ValueError, match="has changed"):
        rewrite(ReleaseLease, ("no such text", ""))


def test_every_mutation_has_a_round():
    """A mistake that never runs is never caught."""
    assert set(MUTANTS) == set(MUTATIONS)


def test_every_invariant_has_a_mutant_that_breaks_it():
    """A checker that never found a violation may be unable to."""
    broken = {mutant.caught_by.split()[0] for mutant in MUTANTS.values()}

    assert broken == set(INVARIANTS) - {"X0"}
