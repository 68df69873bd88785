"""The matrix of the laws is whole: every engine, every server that is wanted, and every shipped law."""

import ast
from pathlib import Path

import pytest
from law_places import PLACES, SERVERS, WANTED

from holdfast import config
from holdfast.core.step import run
from holdfast.engines import ENGINES, open_engine
from holdfast.engines.interface import Capability
from holdfast.engines.redis.promise import TABLE
from holdfast.testing import conformance
from holdfast.testing.servers import missing

ROOT = Path(__file__).resolve().parents[2]


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.acceptance("C-22")
def test_every_caveat_is_shown_by_a_test(engine):
    """A caveat names the test that shows it, and that test exists."""
    promise = engine.connect().promise()
    caveats = [*promise.caveats, *(caveat for rule in TABLE for caveat in rule.caveats)]
    missing = []
    for caveat in caveats if promise.engine == "redis" else promise.caveats:
        path, _, name = caveat.shown_by.partition("::")
        if not (ROOT / path).is_file() or name not in functions_of(path):
            missing.append(caveat.shown_by)

    assert missing == []


def test_every_shipped_law_is_run_here():
    """A law that no file of this folder imports would be shipped untested."""
    shipped = {file.stem for file in Path(conformance.__file__).parent.glob("test_*.py")}
    here = {file.stem: file.read_text() for file in Path(__file__).parent.glob("test_*.py")}
    imported = {stem for stem, text in here.items() if f"from holdfast.testing.conformance.{stem} import *" in text}

    assert imported == shipped


@pytest.mark.parametrize("place", [place for place in PLACES if not place.large], ids=str)
def test_a_place_lacks_what_its_engine_does_not_declare(place, tmp_path):
    """The matrix leaves out laws by `lacks`: a mistake there would hide laws."""
    url = place.fresh_url(tmp_path, "lacks")
    opened = open_engine(config.settings(url))
    undeclared = {each.name.lower() for each in Capability if each not in opened.capabilities}
    run(opened.blocking().close())

    assert place.lacks == undeclared & {"fifo", "pools", "limits", "budgets", "once", "registry", "queues"}


def test_every_engine_keeps_the_laws():
    """Every registered engine is in the matrix, so that no law is forgotten for it."""
    registered = set(ENGINES.values())
    lawful = {ENGINES[place.engine] for place in PLACES}

    assert lawful == registered


@pytest.mark.parametrize("kind", WANTED)
def test_the_laws_run_on_every_wanted_server(kind):
    """A skip names each server that is not installed, instead of leaving it out silently."""
    if kind not in SERVERS:
        pytest.skip(missing(kind))

    assert any(place.label == kind for place in PLACES)
