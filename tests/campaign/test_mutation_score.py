"""Mutants in ordinary rounds: which rounds they run in, and what the report states."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from chaos import report
from chaos.mutant_rounds import mutants_by_name
from chaos.mutation_score import UNMODIFIED, MutationScore, met, rounds_for
from chaos.rounds import named, plan
from chaos.selftest import MutantRun
from chaos.statistics import Statistics
from tests.support.places import ENGINES

SEED = 7
MUTANTS = mutants_by_name(SEED)
# A queue with nothing but harmless faults.
ROUND = next(
    round_
    for round_ in (named(SEED, f"memory/blocking/queue/{number}") for number in range(1, 99))
    if "cancellation storm" in round_.kinds
)

pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize(
    "name", ["barging", "script-serves-last-in-first-out", "cancel-policy-ignored", "never-renews"]
)
def test_a_mutant_runs_in_the_first_rounds_that_can_have_its_mistake(name):
    """A wrong Lua script does nothing to SQLite."""
    mutant = MUTANTS[name]

    rounds = rounds_for(mutant, SEED, ENGINES, 5)

    suited = (one for one in plan(SEED, mutant.engines) if one.face in mutant.faces and one.workload != "mass")
    assert rounds == list(islice(suited, 5))
    assert all(round_ == named(SEED, round_.name) for round_ in rounds)


def test_a_mutant_of_an_excluded_engine_runs_in_no_round():
    """It was neither missed nor caught."""
    assert rounds_for(MUTANTS["script-serves-last-in-first-out"], SEED, ("memory",), 5) == []


def test_a_mutant_with_a_violation_in_an_ordinary_round_is_caught(tmp_path):
    """The round ends with the violation, and counts."""
    verdict = met("barging", ROUND, tmp_path / "barging")
    assert "X8 overtakes" in verdict.names()

    score = MutationScore("barging")
    score.add(ROUND, verdict)
    assert (score.rounds, score.caught, score.where) == (1, 1, [ROUND.name])


def test_the_report_shows_the_score_of_each_mutant(tmp_path):
    """In how many rounds it ran, and in how many it was caught."""
    statistics = Statistics(SEED, 20)
    statistics.kills = [MutantRun(mutant, (mutant.caught_by,), 1.0, 1) for mutant in MUTANTS.values()]
    statistics.scores = {name: MutationScore(name, rounds=6, caught=number % 7) for number, name in enumerate(MUTANTS)}

    statistics.scores[UNMODIFIED] = MutationScore(UNMODIFIED, rounds=6)

    report.write(statistics, tmp_path)

    assert statistics.holds
    page = (tmp_path / report.PAGE).read_text()
    data = json.loads((tmp_path / report.DATA).read_text())
    assert f"make chaos MINUTES=20 SEED={SEED} HUNT=6" in page
    for number, name in enumerate(MUTANTS):
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert line.endswith(f"| {number % 7} of 6 |")
        assert data["mutants_in_ordinary_rounds"][name]["caught"] == number % 7


def test_a_violation_of_the_unmodified_client_fails_the_campaign():
    """Its checker may have caught mutants by false alarms, too."""
    statistics = Statistics(SEED)
    statistics.scores[UNMODIFIED] = MutationScore(UNMODIFIED, rounds=6, caught=1)

    assert not statistics.holds
