"""What an engine promises is a value, and what it cannot promise is shown by a test."""

import ast
from pathlib import Path

import pytest
from law_faces import PLACES, SERVERS, WANTED

from holdfast import Closed, Limit, Promise
from holdfast.engines import ENGINES

ROOT = Path(__file__).resolve().parents[2]


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_an_engine_says_what_may_be_relied_on(face):
    """Printed for people, compared by programs, the same through both faces."""
    client, other = face.connect(), face.connect()
    promise = client.promise()

    assert isinstance(promise, Promise)
    assert promise == other.promise()
    assert promise.engine == face.place.engine
    assert promise.scope in ("process", "host", "hosts")
    assert promise.fifo
    assert promise.fences_grow
    assert promise.reasons != ()
    for word in (promise.engine, promise.scope, promise.level, "first in, first out", "only grow"):
        assert word in str(promise)
    for limit in promise.limits:
        assert isinstance(limit, Limit)
        assert limit.sentence in str(promise)


@pytest.mark.acceptance("C-22")
def test_every_limit_is_shown_by_a_test(engine):
    """A sentence about what is not promised is worth what shows it: a test of that name, in that file."""
    missing = []
    for limit in engine.connect().promise().limits:
        path, _, name = limit.shown_by.partition("::")
        if not (ROOT / path).is_file() or name not in functions_of(path):
            missing.append(limit.shown_by)

    assert missing == []


@pytest.mark.large
def test_where_the_servers_are_may_be_learned_anew_at_any_time(face):
    """An engine of one place has nothing to learn and says so by doing nothing; a closed client learns no more."""
    client = face.connect()
    client.refresh_topology()
    with client.lock("x", ttl=5) as lease:
        client.refresh_topology()
        lease.check()
    client.close()

    with pytest.raises(Closed):
        client.refresh_topology()


def test_every_engine_keeps_the_laws():
    """An engine that is registered stands in the matrix, so that no law can be forgotten for it."""
    registered = set(ENGINES.values())
    lawful = {ENGINES[place.engine] for place in PLACES}

    assert lawful == registered


@pytest.mark.parametrize("kind", WANTED)
def test_the_laws_were_tried_on_every_server_that_was_asked_for(kind):
    """What could not be tried is said by name, once, instead of being left out in silence."""
    if kind not in SERVERS:
        pytest.skip(f"no {kind} server on this machine")

    assert any(place.label == kind for place in PLACES)
