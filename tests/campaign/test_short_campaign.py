"""A short campaign with fixed seeds: every engine, both faces, and most kinds of faults."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product

import pytest

from chaos import report
from chaos.__main__ import CANNOT, _engines, main, until
from chaos.rounds import FACES, WORKLOADS, Round, plan
from chaos.runs import run_rounds
from chaos.schedule import KINDS
from chaos.statistics import Statistics
from holdfast.testing import servers
from tests.support.places import ENGINES

SEED = 20
ROUNDS = [
    Round(SEED, "redis", "asyncio", "counter", seconds=5),
    Round(SEED, "redis", "blocking", "queue", seconds=5),
    Round(SEED, "redis", "blocking", "list", seconds=5),
    Round(SEED, "sqlite", "blocking", "counter-unguarded", seconds=5),
    Round(SEED, "sqlite", "asyncio", "leader", seconds=4),
    Round(SEED, "memory", "blocking", "list-unguarded", seconds=3),
    Round(SEED, "memory", "asyncio", "queue", seconds=3),
    Round(SEED, "memory", "asyncio", "mass", seconds=3),
]

HERE = [round_ for round_ in ROUNDS if round_.engine != "redis" or servers.available()]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Run all rounds once."""
    results = run_rounds(HERE, tmp_path_factory.mktemp("rounds"), at_once=3)
    statistics = Statistics(SEED)
    for played, verdict in results:
        statistics.add(played, verdict)
    return statistics, {played.round.name: (played, verdict) for played, verdict in results}


@pytest.mark.parametrize("round_", ROUNDS, ids=lambda round_: round_.name)
def test_every_invariant_holds_under_faults(campaign, round_):
    """Known limits explain what no engine promises; every other violation fails, and is shown."""
    if round_ not in HERE:
        pytest.skip(servers.missing())
    played, verdict = campaign[1][round_.name]
    shown = [str(one) for found in verdict.violations.values() for one in found]

    assert verdict.holds, f"--seed {SEED} --only {round_.name}\n" + "\n".join(shown)
    assert sum(event.kind == "granted" for event in played.events) > 5
    assert played.injected.total() > 0


def test_most_kinds_of_faults_were_injected(campaign):
    """A campaign without faults breaks no invariant."""
    injected = {kind for kind in KINDS if campaign[0].faults[kind]}

    assert len(injected) >= (12 if HERE == ROUNDS else 6)
    assert {"kill", "freeze", "fork", "cancellation storm"} <= injected


def test_ten_thousand_leases_are_held_at_once_by_one_process(campaign):
    """None of them was lost, as the checks of its round show."""
    assert campaign[0].most_held == 10_000


def test_the_report_has_the_figures_and_names_no_machine(campaign, tmp_path):
    """It is published: figures from the statistics, no path, no host."""
    report.write(campaign[0], tmp_path)

    page = (tmp_path / report.PAGE).read_text()
    data = json.loads((tmp_path / report.DATA).read_text())
    assert data["holds"] is True
    assert data["seed"] == SEED
    assert f"{data['grants']['total']:,} grants" in page
    assert data["rounds"]["total"] == len(HERE)
    assert "redis/asyncio/mass" in data["not_covered"] or "redis/asyncio" in data["not_covered"]
    assert "both faces" not in page
    assert all(f"| {kind} |" in page for kind in KINDS)
    assert not re.search(r"(?<![\w.:/])/(?:tmp|home|root|work|Users)/", page + json.dumps(data))
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (tmp_path / link).exists(), link


def test_one_round_can_be_repeated_from_the_command_line(tmp_path, monkeypatch, capsys):
    """By the seed and the name that a violation prints. A round without a server runs on every machine."""
    monkeypatch.setattr(servers, "available", dict)
    code = main(["--seed", "3", "--only", "memory/blocking/counter/1", "--seconds", "1.5", "--out", str(tmp_path)])

    told = capsys.readouterr().out
    assert code == 0, told
    assert "memory/blocking/counter/1" in told
    assert json.loads((tmp_path / report.DATA).read_text())["rounds"]["memory/blocking/counter"] == 1


def test_without_a_server_a_campaign_needs_named_engines(monkeypatch, capsys):
    """A campaign that left out Redis silently would look like one that included it."""
    monkeypatch.setattr(servers, "available", dict)

    assert main(["--minutes", "0"]) == CANNOT
    told = capsys.readouterr().out
    assert "NO SERVER for redis" in told
    assert "--engines memory,sqlite" in told

    assert main(["--only", "redis/blocking/counter/1"]) == CANNOT


def test_engines_are_chosen_by_name(capsys):
    """A wrong name is refused."""
    assert _engines("memory,sqlite") == ("memory", "sqlite")

    with pytest.raises(SystemExit):
        main(["--engines", "memory,sqlight"])
    assert "sqlight" in capsys.readouterr().err


def test_a_campaign_without_time_still_runs_every_engine_through_both_faces():
    """One round of one engine is no campaign."""
    played = list(until(0, plan(SEED, ENGINES), ENGINES))

    assert sorted((round_.engine, round_.face) for round_ in played) == sorted(product(ENGINES, FACES))


def test_uncovered_parts_are_listed():
    """Silence about a part would look like a result for it."""
    statistics = Statistics(SEED)
    assert statistics.not_covered == [f"{engine}/{face}" for engine, face in product(ENGINES, FACES)]

    statistics.rounds.update(f"{engine}/{face}/{work}" for engine, face, work in product(ENGINES, FACES, WORKLOADS))
    assert statistics.not_covered == []

    del statistics.rounds["sqlite/asyncio/leader"]
    assert statistics.not_covered == ["sqlite/asyncio/leader"]


def test_a_history_of_a_round_is_in_the_order_of_time(campaign):
    """The checkers rely on one clock for all processes."""
    for played, _ in campaign[1].values():
        assert all(before.at_ns <= after.at_ns for before, after in pairwise(played.events))
