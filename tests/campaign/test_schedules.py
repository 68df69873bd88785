"""The schedule of faults: what it is drawn from, and what it never does."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from chaos.checks import bounds_of
from chaos.injectors import INJECTORS
from chaos.rounds import FACES, WORKLOADS, Round, named, plan
from chaos.schedule import KINDS, SERVER, THEMES, draw, kinds_for, themes_for
from tests.support.places import ENGINES

ROUND = Round(7, "redis", "asyncio", "counter", seconds=30)

PROGRAM = """
from itertools import islice, pairwise
from chaos.rounds import plan
from chaos.schedule import draw
for round_ in islice(plan(7, ("memory", "sqlite", "redis")), 30):
    print(round_, draw(round_))
"""


def drawn_in_a_new_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_the_same_seed_gives_the_same_schedule_in_every_process():
    """A seed is enough to repeat a violation; a set or a hash in the drawing would break that."""
    first = drawn_in_a_new_process("1")

    assert len(first.splitlines()) == 30
    assert drawn_in_a_new_process("2") == first


def test_another_seed_gives_another_schedule():
    """Otherwise the seed would have no effect."""
    assert draw(ROUND) != draw(replace(ROUND, seed=8))
    assert draw(ROUND) != draw(replace(ROUND, number=2))


def test_a_round_can_be_repeated_by_its_name():
    """A violation prints the seed and the name of the round; that is all that is needed."""
    for round_ in islice(plan(7, ENGINES), 60):
        again = named(7, round_.name)

        assert again == round_
        assert draw(again) == draw(round_)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("face", FACES)
def test_every_suited_fault_comes_before_any_comes_too_often(engine, face):
    """A campaign that never draws a fault proves nothing about it."""
    rounds = [Round(seed, engine, face, "counter", seconds=20) for seed in range(4)]

    injected = {fault.kind for round_ in rounds for fault in draw(round_)}

    assert injected == set(kinds_for(engine, face))


def test_every_kind_of_fault_has_an_engine_and_an_injector():
    """A kind without an injector, or without an engine, would never happen."""
    suited = {kind for engine in ENGINES for face in FACES for kind in kinds_for(engine, face)}

    assert suited == set(KINDS) == set(INJECTORS)


def test_the_server_has_one_fault_at_a_time():
    """A restart of a frozen server would be one fault recorded as two."""
    for seed in range(50):
        faults = [fault for fault in draw(replace(ROUND, seed=seed)) if fault.target == SERVER]

        for before, after in pairwise(faults):
            assert before.at_s + before.lasts_s <= after.at_s


def test_a_campaign_has_mixed_rounds_and_themes():
    """Many faults at once excuse many delays: each mistake needs a round with its cause alone."""
    rounds = [named(1, f"{engine}/asyncio/counter/{n}") for engine in ("redis", "cluster") for n in range(1, 300)]
    themed = [round_ for round_ in rounds if round_.kinds]

    assert 300 < len(themed) < 540
    assert {kind for round_ in themed for kind in round_.kinds} == set(KINDS)
    assert {kind for kinds in THEMES.values() for kind in kinds} == set(KINDS)


@pytest.mark.parametrize(("engine", "theme"), [("memory", "silence"), ("memory", "deaths"), ("sqlite", "server")])
def test_a_theme_runs_only_where_its_first_fault_makes_sense(engine, theme):
    """The rest of it would be another theme under a wrong name."""
    assert theme not in themes_for(engine, "blocking", "counter")
    assert theme in themes_for("redis", "blocking", "counter")


def test_in_a_theme_one_fault_is_over_before_the_next_begins():
    """Each effect has one cause."""
    for seed in range(50):
        faults = draw(replace(ROUND, seed=seed, kinds=THEMES["stopped"], apart=True))

        assert len(faults) > 3
        for before, after in pairwise(faults):
            assert before.at_s + before.lasts_s < after.at_s


def test_a_long_freeze_outlasts_every_excuse():
    """A waiter without a timer shows only while the holder is stopped for longer than the bounds allow."""
    round_ = named(1, "redis/blocking/counter/1")
    bounds = bounds_of(round_)
    freezes = [fault for seed in range(9) for fault in draw(replace(ROUND, seed=seed, kinds=("long freeze",)))]

    assert min(fault.lasts_s for fault in freezes) - round_.ttl > bounds.idle_s + bounds.ttl_s


def test_no_round_loses_both_the_data_and_the_clock():
    """Fences grow through either of them alone; both at once are beyond every promise."""
    for seed in range(50):
        kinds = {fault.kind for fault in draw(replace(ROUND, seed=seed))}

        assert not {"restart without data", "server clock"} <= kinds


def test_the_plan_has_every_workload_on_every_engine_through_both_faces():
    """No combination comes a second time before all have had their turn."""
    turns = [(engine, face, work) for engine in ENGINES for face in FACES for work in WORKLOADS]
    once = sum(work.weight for work in WORKLOADS.values()) * len(ENGINES) * len(FACES)

    played = {(round_.engine, round_.face, round_.workload) for round_ in islice(plan(3, ENGINES), once)}

    assert played == set(turns)
