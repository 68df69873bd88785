"""The completion of names: quick, silent, and safe to insert into a command line."""

import socket
import time
from types import SimpleNamespace

import pytest
from cli_tool import eventually

from holdfast.cli import completion

LONGEST_S = 0.5


def completed(tool, *words, url=None):
    """Return what the shell would offer for the last word, and the error output."""
    env = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = tool(env={**env, **({"HOLDFAST_URL": url} if url else {})})
    return done.out.decode().split(), done.err


def looked_up(complete, url, incomplete):
    """Call the completion in this process; return its answer and how long it took."""
    began = time.monotonic()
    answer = complete(SimpleNamespace(params={"url": url}), incomplete)
    return answer, time.monotonic() - began


def test_the_names_of_leases_pools_and_queues_are_completed(tool):
    """Each command offers the names that it takes."""
    hf = tool.client()
    hf.pool("channels").set_items(["a"])
    hf.queue("chores").publish(1)
    with hf.lock("chart/1"), hf.lock("other"):
        offered = {
            "show ch": (["chart/1", "channels"], ""),
            "break chart/": (["chart/1"], ""),
            "pool show ch": (["channels"], ""),
            "queue stats ch": (["chores"], ""),
        }
        for words, (names, _) in offered.items():
            # On a busy machine the engine may not answer in time once; then the shell offers nothing.
            eventually(
                lambda words=words, names=names: completed(tool, "holdfast", *words.split(" ")) == (sorted(names), b""),
                what=f"{names} for {words!r}",
            )


def test_a_name_that_a_shell_would_read_as_code_is_not_offered(tool):
    """The shell inserts an offered name as it is: a name of another user must not become a command."""
    hf = tool.client()
    with hf.lock("a-name"), hf.lock("a;reboot"), hf.lock("a $(id)"), hf.lock("a\nb"), hf.lock("aß"):
        eventually(lambda: looked_up(completion.LEASES, tool.url, "a")[0] == ["a-name"], what="one name")


@pytest.mark.parametrize("kind", ["closed port", "no answer", "no file", "bad URL"])
def test_an_engine_that_is_down_offers_nothing_within_half_a_second(local, tmp_path, kind):
    """The user waits with a finger on the key, and an error would be printed into the line."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if kind == "no answer":
            server.listen()
        port = server.getsockname()[1]
        url = {"no file": f"sqlite://{tmp_path}/none/x.db", "bad URL": "nonsense://x"}.get(
            kind, f"redis://127.0.0.1:{port}"
        )
        completion.LEASES(SimpleNamespace(params={"url": url}), "x")  # imports the engine
        answer, took = looked_up(completion.LEASES, url, "x")
        assert answer == []
        assert took < LONGEST_S
        assert completed(local, "holdfast", "show", "x", url=url) == ([], b"")
    assert not (tmp_path / "none").exists()
