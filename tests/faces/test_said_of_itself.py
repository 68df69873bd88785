"""What objects say of themselves: where they are printed, and where somebody tries to send them elsewhere."""

import asyncio
import copy
import pickle

import pytest

import holdfast
from holdfast import aio

LEASE = r"a lease cannot be pickled or copied: .* name and fence"
CLIENT = "client cannot be pickled or copied: connect in the process"


def assert_stays(lease, *made):
    """Neither can be sent away; each says what to do instead."""
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=LEASE):
            send(lease)
    for thing in made:
        with pytest.raises(TypeError, match=CLIENT):
            pickle.dumps(thing)


def test_a_lease_or_a_client_that_is_pickled_says_what_to_do_instead(request):
    """Sent to another process, it would be trusted by two and renewed by one."""
    with holdfast.connect(f"memory://{request.node.name}") as hf, hf.lock("x") as lease:
        assert_stays(lease, hf, hf.lock("x"), hf.leader("x"), hf.pool("x"))
        lease.check()


def test_the_same_is_said_by_the_other_face(request):
    """One library: the words are written once."""

    async def said():
        async with await aio.connect(f"memory://{request.node.name}") as hf, hf.lock("x") as lease:
            assert_stays(lease, hf, hf.lock("x"), hf.leader("x"), hf.pool("x"))
            leader = hf.leader("scheduler", candidate="server 1")
            assert repr(leader) == f"<leader 'scheduler', candidate 'server 1', on {hf.url}>"

    asyncio.run(said())


def test_a_leader_says_what_it_is_where_it_is_printed(request):
    """Which election, which candidate, whether it leads, and where."""
    with holdfast.connect(f"memory://{request.node.name}") as hf:
        leader = hf.leader("scheduler", candidate="server 1")

        assert repr(leader) == f"<leader 'scheduler', candidate 'server 1', on {hf.url}>"
        with leader:
            assert "candidate 'server 1', leading, on " in repr(leader)
        assert "leading" not in repr(leader)
