"""A holder that is suspended past its ttl and resumes: the reason why leases have fences."""

from __future__ import annotations

import json
import time

import pytest

from holdfast.testing import GuardedFile


@pytest.mark.acceptance("A0-10", "G-1", "G-4", "C-3", "C-24")
def test_a_holder_that_resumes_after_its_successor_wrote_is_refused_and_learns_of_the_loss(
    start, url, connect, tmp_path
):
    """It cannot know that time has passed; so the resource refuses its old fence, and its block ends in a loss."""
    path = tmp_path / "guarded"
    holder = start("write_on_order", url=url, name="x", path=path, ttl=1)
    fence = json.loads(holder.read_line())["fence"]
    holder.send_line("write")
    assert holder.read_line() == f"wrote {fence}"

    holder.freeze()
    with connect().lock("x", ttl=30, timeout=5) as successor:
        written = GuardedFile(path).write(successor.fence, successor.token, lambda _: "the successor was here")
        holder.thaw()
        holder.send_line("write")
        answer = holder.read_line()
        holder.send_line("leave")
        outcome = holder.read_line()
        successor.check()

    assert successor.fence > fence
    assert answer == f"Fenced {successor.fence}"
    assert outcome == "LeaseLost expired"
    assert GuardedFile(path).read().value == written == "the successor was here"
    assert GuardedFile(path).read().fence == successor.fence


@pytest.mark.acceptance("G-4")
def test_a_holder_suspended_for_less_than_its_ttl_keeps_its_lease(start, url, connect, tmp_path):
    """A slow holder is not replaced."""
    path = tmp_path / "guarded"
    holder = start("write_on_order", url=url, name="x", path=path, ttl=2)
    fence = json.loads(holder.read_line())["fence"]

    holder.freeze()
    time.sleep(0.7)
    stolen = connect().lock("x").try_acquire()
    holder.thaw()
    time.sleep(1.5)
    holder.send_line("write")
    answer = holder.read_line()
    holder.send_line("leave")

    assert stolen is None
    assert answer == f"wrote {fence}"
    assert holder.read_line() == "released"
