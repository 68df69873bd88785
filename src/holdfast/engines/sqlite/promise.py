"""From the filesystem that the file lies on to what may be relied on there.

The engine refuses network filesystems when it opens. If the system does not report the type, the filesystem may be one.
"""

from __future__ import annotations

from holdfast.engines.sqlite.process_locks import BY_DESCRIPTOR
from holdfast.rules.promise import EFFICIENCY, MOVABLE, RESTART, Caveat, Promise

_CAVEATS = (
    Caveat(
        "if a process is suspended in the middle of a transaction, the others get Unavailable until it resumes; the "
        "error names its pid",
        "tests/engines/sqlite/test_gate.py::test_a_process_suspended_inside_the_gate_is_named_within_the_bound",
    ),
    Caveat(
        "other hosts and network filesystems are refused when the engine is opened",
        "tests/engines/sqlite/test_location.py::test_a_network_filesystem_is_refused_by_name",
    ),
    Caveat(
        "a power cut may lose the last commits, such as messages, idempotency keys, rate limits and budgets. Leases "
        "stay safe, because every holder ends with the host and fences grow by the clock",
        "tests/engines/sqlite/test_recovery.py::test_fences_grow_after_the_last_commits_were_lost",
    ),
)
_WITHOUT_LOCKS_BY_DESCRIPTOR = Caveat(
    "this system has only POSIX locks: a process that opens and closes the .gate or .live file, or the database, other "
    "than through this library (a backup, a checksum) loses its locks, and others may take its leases",
    "tests/engines/sqlite/test_process_locks.py"
    "::test_without_locks_by_descriptor_the_promise_says_what_a_program_must_not_do",
)


def promised(filesystem: str, *, movable: bool = False) -> Promise:
    """Return the promise of a file on that type of filesystem; empty if the system does not report it.

    `movable`: all users of the host may move the file away.
    """
    seen = f"the file lies on {filesystem}, a filesystem of this machine" if filesystem else ""
    return Promise(
        engine="sqlite",
        scope="host",
        level=RESTART if filesystem else EFFICIENCY,
        fifo=True,
        fences_grow=True,
        reasons=(
            "each command is one transaction behind a kernel lock",
            "a dead process is seen by the kernel lock it no longer has",
            seen or "a network filesystem, which could not be distinguished from a local one, would break the locks",
        ),
        caveats=(
            *_CAVEATS,
            *(() if BY_DESCRIPTOR else (_WITHOUT_LOCKS_BY_DESCRIPTOR,)),
            *((MOVABLE,) if movable else ()),
        ),
        unseen=() if filesystem else ("the type of the filesystem: this system does not report it",),
        changes=() if filesystem else ("make sure that the file lies on a local disk",),
        facts=(("filesystem", filesystem or None),),
    )
