"""The steps of a mutation: acquire a lease, record the fence, read the newest version, check the fence at the commit.

The order matters. The writer records its fence before it reads the table: from then on no older writer can commit, so
the version it read stays the newest until it has written. Lance calls a lock right before it makes a new version
visible. Our lock compares the fence, so the store refuses a writer that lost its lease in the middle of its work,
however late it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import lance

from holdfast import failpoints
from holdfast.contrib.lancedb.fence import FenceFile
from holdfast.core.build import domain
from holdfast.errors import DomainMismatch, HoldfastError, LeaseLost

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, Lease
    from holdfast.clock import Seconds

FENCE_FILE = ".holdfast-fence"


class WriteAccess:
    """The argument of every write: the lease and its fence. Without a lease (the mode `off`) it guards nothing."""

    def __init__(self, uri: str, lease: Lease | None = None, fences: FenceFile | None = None) -> None:
        self.uri = uri
        self.commits: list[int] = []
        self.refusal: HoldfastError | None = None
        self.found: int | None = None
        self._lease = lease
        self._fences = fences

    @property
    def fence(self) -> int | None:
        """The fence of the lease; `None` without a lease."""
        return None if self._lease is None else self._lease.fence

    @property
    def lock(self) -> Callable[[int], CommitLock] | None:
        """The function that Lance calls with the number of each version before it commits."""
        return None if self._lease is None else self._commit_lock

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost."""
        if self._lease is not None:
            self._lease.check()

    def is_valid(self) -> bool:
        """Return whether more work may begin under this lease."""
        return self._lease is None or not self._lease.lost

    def dataset(self) -> Any:
        """Return the table at its newest version. Every commit through it checks the fence."""
        dataset = lance.dataset(self.uri, commit_lock=self.lock)
        if self.found is None:
            self.found = dataset.version
        return dataset

    def foreign_commits(self) -> int:
        """Return how many versions other writers committed without the writer lock in the meantime."""
        if self.found is None or not self.commits:
            return 0
        return self.commits[-1] - self.found - len(self.commits)

    def _commit_lock(self, version: int) -> CommitLock:
        assert self._lease is not None
        assert self._fences is not None
        return CommitLock(self, self._lease, self._fences, version)


class CommitLock:
    """The lock from the last check of the fence to the end of one commit.

    It stores a refusal in `WriteAccess`, because Lance passes on only the text of an error.
    """

    def __init__(self, access: WriteAccess, lease: Lease, fences: FenceFile, version: int) -> None:
        self._access = access
        self._lease = lease
        self._version = version
        self._held: AbstractContextManager[None] = fences.held(lease.fence, lease.token, str(lease.holder))

    def __enter__(self) -> None:
        try:
            self._lease.check()
            failpoints.point("lancedb.before-commit")
            self._held.__enter__()
        except HoldfastError as error:
            self._access.refusal = error
            raise
        failpoints.point("lancedb.in-commit")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._access.commits.append(self._version)
        self._held.__exit__(None, None, None)


class WriterLock:
    """The writer lock of one table. The constructor marks the directory as guarded by this engine.

    It raises `DomainMismatch` if another engine guards the directory.
    """

    def __init__(
        self, client: Holdfast | None, directory: Path, table: str, *, ttl: Seconds, timeout: Seconds | None
    ) -> None:
        self.uri = str(directory / f"{table}.lance")
        self.acquisitions = 0
        self._directory = directory
        self._client = client
        self._ttl = ttl
        self._timeout = timeout
        if client is None:
            _refuse_unguarded(directory)
            self.name = ""
        else:
            self.name = f"lancedb/{client.domain(directory).id}/{table}"
        self._fences = FenceFile(directory / f"{FENCE_FILE}.{table}", self.name)

    @contextmanager
    def entered(self) -> Iterator[WriteAccess]:
        """Hold the lease during the block, so no other writer commits. Entering and leaving raise as for a lock."""
        if self._client is None:
            _refuse_unguarded(self._directory)  # check each time: another process may guard the directory by now
            yield WriteAccess(self.uri)
            return
        with self._client.lock(self.name, ttl=self._ttl, timeout=self._timeout) as lease:
            self.acquisitions += 1
            self._fences.admit(lease.fence, lease.token, str(lease.holder))
            yield WriteAccess(self.uri, lease, self._fences)


def attempt(access: WriteAccess, work: Callable[[WriteAccess], Any]) -> Any:
    """Do the work. Raise a refusal of the commit lock as itself; add a note on the table's state to other errors."""
    before = len(access.commits)
    access.refusal = None
    try:
        return work(access)
    except BaseException as error:
        refusal = access.refusal
        if refusal is not None and error is not refusal:
            if len(access.commits) > before:
                refusal.add_note(_table_state(access, before))  # the work made several commits
            raise refusal from error
        if not isinstance(error, HoldfastError) or isinstance(error, LeaseLost):
            error.add_note(_table_state(access, before))
        raise


def _table_state(access: WriteAccess, before: int) -> str:
    made = access.commits[before:]
    if made:
        return f"before that, version {made[-1]} was committed; its rows are in the table"
    unknown = "without a lock it is unknown whether something was committed"
    return "nothing was committed: every row is as it was" if access.lock else unknown


def _refuse_unguarded(directory: Path) -> None:
    marked = domain.read(directory)
    if marked is not None:
        marker = str(directory / domain.MARKER)
        raise DomainMismatch(str(directory), domain.url_of_domain(marked), "no engine at all (off)", marker)
