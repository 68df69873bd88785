"""From the filesystem under a shared directory to what may be relied on there."""

from __future__ import annotations

from holdfast.rules.promise import CLIENTS, EFFICIENCY, MOVABLE, RESTART, Caveat, Promise

_TESTS = "tests/engines/files"
_CAVEATS = (
    Caveat(
        "a holder that is paused for longer than its ttl is replaced: compare fences, or publish by build_once",
        f"{_TESTS}/test_take_over.py::test_a_holder_stopped_past_its_ttl_loses_the_lease_and_overwrites_nothing",
    ),
    Caveat(
        "if the directory is deleted or its volume replaced, every lease in it is lost, and its holders get LeaseLost",
        f"{_TESTS}/test_root_faults.py::test_a_directory_that_was_deleted_loses_its_leases_and_its_holders_are_told",
    ),
    Caveat(
        "if a power cut tears the newest version of a lease, the lease counts as held for a minute, or for the longest "
        "ttl in its older versions: a holder with a longer ttl may then be replaced before its ttl ends",
        f"{_TESTS}/test_root_faults.py::test_a_torn_lease_counts_as_held_for_a_minute_if_no_older_version_tells_its_ttl",
    ),
)
_NETWORK_CAVEATS = (
    Caveat(
        "waiters poll, up to twenty times a second: in no promised order",
        f"{_TESTS}/test_other_hosts.py::test_waiters_on_a_network_poll",
    ),
    Caveat(
        "a dead holder of another host is replaced after its ttl, counted from when the waiter first saw its last "
        "heartbeat",
        f"{_TESTS}/test_other_hosts.py::test_a_holder_of_another_host_is_replaced_after_its_ttl_on_the_waiters_clock",
    ),
)


def promised(kind: str, *, network: bool, movable: bool = False) -> Promise:
    """Return the promise of a directory on that type of filesystem; empty if the system does not report it.

    `movable`: all users of the host may move the files of the engine away.
    """
    caveats = (*_CAVEATS, MOVABLE) if movable else _CAVEATS
    tried = "a link that only one can win and a rename that cannot overwrite were tried there"
    if not network:
        return Promise(
            engine="file",
            scope="host",
            level=RESTART if kind else EFFICIENCY,
            fifo=True,
            fences_grow=True,
            reasons=(
                "each change is the next numbered version, made by one link",
                "a dead process is seen by the kernel lock it no longer has",
                tried,
            ),
            caveats=caveats,
            unseen=() if kind else ("the type of the filesystem: this system does not report it",),
            changes=() if kind else ("make sure that the directory lies on a local disk",),
            facts=(("filesystem", kind or None),),
        )
    nfs = kind.startswith("nfs")
    return Promise(
        engine="file",
        scope="hosts",
        level=CLIENTS if nfs else EFFICIENCY,
        fifo=False,
        fences_grow=True,
        reasons=(
            "each change is the next numbered version, made by one link, which the file server decides",
            "the clocks of two machines are never compared",
            tried,
        ),
        caveats=(*caveats, *_NETWORK_CAVEATS),
        unseen=("whether the file server keeps what it has confirmed when it restarts",)
        if nfs
        else (f"how {kind} behaves between two machines: it was not tested",),
        changes=("use redis:// for a promised order and faster waiting",),
        facts=(("filesystem", kind),),
    )
