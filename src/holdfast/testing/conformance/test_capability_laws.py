"""An engine refuses a missing capability when the object is made, not when it is used."""

import pytest

from holdfast.errors import InvalidConfig

WANTED = {
    "pool": lambda hf: hf.pool("x"),
    "semaphore": lambda hf: hf.semaphore("x", permits=2),
    "rwlock": lambda hf: hf.rwlock("x"),
    "limit": lambda hf: hf.limit("1/second"),
    "budget": lambda hf: hf.budget("x", limit=1),
    "once": lambda hf: hf.once("x"),
    "registry": lambda hf: hf.registry("x"),
    "queue": lambda hf: hf.queue("x"),
}

FEATURE = {"pool": "pools", "semaphore": "semaphores", "rwlock": "read-write locks"}  # the words of the error


CAPABILITY = {
    "pool": "pools",
    "semaphore": "pools",
    "rwlock": "pools",
    "limit": "limits",
    "budget": "budgets",
    "once": "once",
    "registry": "registry",
    "queue": "queues",
}


@pytest.mark.parametrize("wanted", WANTED)
def test_every_declared_capability_works(face, wanted):
    """A program that gets a pool may rely on it; a refusal comes before any command."""
    with face.connect() as client:
        if CAPABILITY[wanted] in face.place.lacks:
            feature = FEATURE.get(wanted, ".*")
            with pytest.raises(InvalidConfig, match=f"keeps leases and no {feature}: sqlite:// has them .* redis://"):
                WANTED[wanted](client)
        else:
            assert repr(WANTED[wanted](client))
