"""The self-test: each broken client is caught by the checker named for it, and the right client by none.

All are played once, several at a time; then each test looks at its own.
"""

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
BANK = mutants_by_name(SEED)
HERE = {name: mutant for name, mutant in BANK.items() if mutant.round.engine != "redis" or servers.available()}
ROUNDS = rounds_of(list(HERE.values()))

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    return {kill.mutant.name: kill for kill in run_mutants(list(HERE.values()), tmp_path_factory.mktemp("mutants"))}


@pytest.fixture(scope="module")
def acquittals(tmp_path_factory):
    return dict(run_unmodified(ROUNDS, tmp_path_factory.mktemp("right")))


@pytest.mark.parametrize("name", BANK)
def test_a_broken_client_is_caught_by_its_checker(kills, name):
    """Or the campaign's silence about the right client would mean nothing."""
    if name not in HERE:
        pytest.skip(servers.missing())
    kill = kills[name]
    if kill.not_run:
        pytest.skip(f"not run: {wallclock.missing() or kill.not_run}")

    assert kill.killed, f"{name} was not caught by {BANK[name].caught_by}, but by {kill.caught_by or 'nobody'}"
    assert kill.shown, "a violation shows the part of the history that proves it"


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=lambda number: f"{ROUNDS[number].name}-{number}")
def test_the_right_client_passes_every_checker_in_the_same_rounds(acquittals, number):
    """A checker that accuses the innocent is as useless as one that accuses nobody."""
    verdict = acquittals[ROUNDS[number]]
    shown = [str(one) for found in verdict.violations.values() for one in found]

    assert verdict.holds, f"seed {SEED}, {ROUNDS[number]}\n" + "\n".join(shown)


def test_a_mutant_that_finds_nothing_to_change_is_an_error():
    """Whoever moves a function would disarm it unseen, and it would play as the right client under another name."""
    with pytest.raises(AttributeError):
        put(lease, "no_such_function", None)
    with pytest.raises(ValueError, match="has changed"):
        rewrite(ReleaseLease, ("no such text", ""))


def test_every_mutation_stands_in_the_table():
    """A mistake that nobody plays is not caught by anybody."""
    assert set(BANK) == set(MUTATIONS)


def test_every_promise_has_a_mutant_that_breaks_it():
    """A checker that was never seen to accuse may be unable to."""
    broken = {mutant.caught_by.split()[0] for mutant in BANK.values()}

    assert broken == set(INVARIANTS) - {"X0"}
