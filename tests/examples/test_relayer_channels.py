"""The relayer example: each outcome of a transaction has exactly its stated effect."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.servers import Server, available, missing

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "relayer_channels.py"


def load():
    spec = importlib.util.spec_from_file_location("relayer_channels", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["relayer_channels"] = module
    spec.loader.exec_module(module)
    return module


relayer_channels = load()
# The error, the cooldown of the channel in seconds, and whether the sequence number stays in the cache.
EFFECTS = {
    "confirmed": (None, 0.0, True),
    "pending": (None, 30.0, False),
    "wait timeout": (relayer_channels.WaitTimeout, 30.0, False),
    "unknown": (relayer_channels.UnknownStatus, 6.0, False),
    "failed on chain": (relayer_channels.OnChainFailed, 6.0, False),
    "error": (relayer_channels.SubmitError, 0.0, False),
}


@pytest.fixture(scope="module")
def server():
    kind = "valkey" if "valkey" in available() else next(iter(available()), None)
    if kind is None:
        pytest.skip(missing())
    with Server(kind) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def relayer(request, tmp_path):
    urls = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite://{tmp_path}/x.db"}
    url = urls[request.param] if request.param in urls else request.getfixturevalue("server").url
    if request.param == "redis":
        request.getfixturevalue("server").command("FLUSHALL")
    with holdfast.connect(url) as hf:
        hf.pool("channels").set_items(["only"])
        yield relayer_channels.Relayer(hf, relayer_channels.Chain(), relayer_channels.Sequences())
        hf.pool("channels").set_items([], leave=True)


@pytest.mark.acceptance("A3-18", "C-5")
@pytest.mark.parametrize("outcome", EFFECTS)
def test_each_outcome_has_exactly_its_effect_on_the_channel_and_on_the_sequence(relayer, outcome):
    """A certain outcome returns the channel at once; an uncertain one lets it cool down."""
    raised, kept_s, known = EFFECTS[outcome]
    relayer.sequences.used("only", 0)
    if raised is None:
        assert relayer.send(outcome) == outcome
    else:
        with pytest.raises(raised):
            relayer.send(outcome)

    (item,) = relayer.pool.stats().items
    assert item.state == ("cooling" if kept_s else "free")
    assert kept_s - 3 <= item.remaining <= kept_s
    assert ("only" in relayer.sequences.known) is known
    assert item.used == 1
    if known:
        assert relayer.sequences.next(relayer.chain, "only") == 2


@pytest.mark.acceptance("A3-18")
def test_a_read_only_call_takes_no_channel(relayer):
    """A read-only call borrows nothing."""
    assert relayer.simulate("only") == 0
    assert relayer.pool.stats().items[0].used == 0


def test_the_example_runs(tmp_path):
    """Several copies may run at once, as the docstring of the example says."""
    words = [sys.executable, str(EXAMPLE), f"sqlite://{tmp_path}/x.db"]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for each in running:
        out, err = each.communicate(timeout=60)
        assert each.returncode == 0, err
        lines = out.splitlines()
        assert [re.sub(r"\d+ times, \w+", "n times", line) for line in lines[:-1]] == [
            f"channel {number}: used n times" for number in range(1, 7)
        ]
        assert re.fullmatch(r"[1-9]\d* transactions confirmed, 0 sequence conflicts", lines[-1])
