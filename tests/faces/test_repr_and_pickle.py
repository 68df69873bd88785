"""The repr of objects, and the errors when a program pickles or copies them."""

import asyncio
import copy
import pickle

import pytest

import holdfast
from holdfast import aio

LEASE = r"a lease cannot be pickled or copied: .* name and fence"
CLIENT = "client cannot be pickled or copied: connect in the process"


def assert_stays(lease, *made):
    """Check that neither can be pickled or copied, and that the error says what to do instead."""
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=LEASE):
            send(lease)
    for thing in made:
        with pytest.raises(TypeError, match=CLIENT):
            pickle.dumps(thing)


def test_pickling_a_lease_or_a_client_says_what_to_do_instead(request):
    """In another process, two would trust the lease and one would renew it."""
    with holdfast.connect(f"memory://{request.node.name}") as hf, hf.lock("x") as lease:
        assert_stays(lease, hf, hf.lock("x"), hf.leader("x"), hf.pool("x"))
        lease.check()


def test_pickling_fails_alike_in_the_asyncio_face(request):
    """One library: the sentences are written once."""

    async def program():
        async with await aio.connect(f"memory://{request.node.name}") as hf, hf.lock("x") as lease:
            assert_stays(lease, hf, hf.lock("x"), hf.leader("x"), hf.pool("x"))
            leader = hf.leader("scheduler", candidate="server 1")
            assert repr(leader) == f"<leader 'scheduler', candidate 'server 1', on {hf.url}>"

    asyncio.run(program())


def test_the_repr_of_a_leader_shows_its_election_and_candidate(request):
    """Which election, which candidate, whether it leads, and where."""
    with holdfast.connect(f"memory://{request.node.name}") as hf:
        leader = hf.leader("scheduler", candidate="server 1")

        assert repr(leader) == f"<leader 'scheduler', candidate 'server 1', on {hf.url}>"
        with leader:
            assert "candidate 'server 1', leading, on " in repr(leader)
        assert "leading" not in repr(leader)


def test_dir_of_every_kind_of_lease_hides_the_internal_names(request):
    """A completion in an editor or a shell shows only the API, also for leases with larger commands."""
    with holdfast.connect(f"memory://{request.node.name}") as hf:
        hf.pool("p").set_items(["a"])
        with hf.once("o").first("k") as first, hf.registry("r").claim("k") as entry, hf.pool("p").borrow() as item:
            for lease in (first, entry, item):
                assert "acquire_steps" not in dir(lease)
                assert "begin_with" not in dir(lease)
                assert "fence" in dir(lease)
