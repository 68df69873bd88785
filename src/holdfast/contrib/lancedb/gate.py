"""The one way to a mutation: a lease, then the fence, then the newest version, and the fence again at the commit.

The order matters. The fence is recorded before the table is read: from then on an older writer cannot commit, so what
is read here stays as it is until this one has written. Lance itself takes a lock right before it makes a new version
visible, if it is given one: that lock compares the fence, so that a writer which lost its lease in the middle of its
work is refused by the store, whenever it wakes.
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

FENCES = ".holdfast-fence"


class Passage:
    """One time through the gate, as the work gets it. Without a lease (the mode `off`) it guards nothing."""

    def __init__(self, uri: str, lease: Lease | None = None, fences: FenceFile | None = None) -> None:
        self.uri = uri
        self.commits: list[int] = []
        self.refusal: HoldfastError | None = None
        self.found: int | None = None
        self._lease = lease
        self._fences = fences

    @property
    def fence(self) -> int | None:
        """The fence of the lease; `None` where there is none."""
        return None if self._lease is None else self._lease.fence

    @property
    def lock(self) -> Callable[[int], CommitLock] | None:
        """What Lance is to call with the number of each version that it is about to make."""
        return None if self._lease is None else self._commit_lock

    def check(self) -> None:
        """Raise `LeaseLost` if the lease cannot be vouched for."""
        if self._lease is not None:
            self._lease.check()

    def stands(self) -> bool:
        """Whether there is any use in going on."""
        return self._lease is None or not self._lease.lost

    def dataset(self) -> Any:
        """The table at its newest version. Whatever is committed through it passes the fence."""
        dataset = lance.dataset(self.uri, commit_lock=self.lock)
        if self.found is None:
            self.found = dataset.version
        return dataset

    def overtaken(self) -> int:
        """How many versions somebody made past the gate while this one was inside."""
        if self.found is None or not self.commits:
            return 0
        return self.commits[-1] - self.found - len(self.commits)

    def _commit_lock(self, version: int) -> CommitLock:
        assert self._lease is not None
        assert self._fences is not None
        return CommitLock(self, self._lease, self._fences, version)


class CommitLock:
    """From the last look at the fence to the end of one commit. A refusal is kept: Lance only tells its text."""

    def __init__(self, passage: Passage, lease: Lease, fences: FenceFile, version: int) -> None:
        self._passage = passage
        self._lease = lease
        self._version = version
        self._held: AbstractContextManager[None] = fences.held(lease.fence, lease.token, str(lease.holder))

    def __enter__(self) -> None:
        try:
            self._lease.check()
            failpoints.point("lancedb.before-commit")
            self._held.__enter__()
        except HoldfastError as error:
            self._passage.refusal = error
            raise
        failpoints.point("lancedb.in-commit")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._passage.commits.append(self._version)
        self._held.__exit__(None, None, None)


class Gate:
    """The gate of one table. Opening it marks the directory as guarded by this engine, or finds out that it is not."""

    def __init__(
        self, client: Holdfast | None, directory: Path, table: str, *, ttl: Seconds, timeout: Seconds | None
    ) -> None:
        self.uri = str(directory / f"{table}.lance")
        self.passed = 0
        self._directory = directory
        self._client = client
        self._ttl = ttl
        self._timeout = timeout
        if client is None:
            _refuse_unguarded(directory)
            self.name = ""
        else:
            self.name = f"lancedb/{client.domain(directory).id}/{table}"
        self._fences = FenceFile(directory / f"{FENCES}.{table}", self.name)

    @contextmanager
    def entered(self) -> Iterator[Passage]:
        """Inside of the block nobody else writes. It raises what a lock does, at its end too."""
        if self._client is None:
            _refuse_unguarded(self._directory)  # each time: somebody may have begun to guard it
            yield Passage(self.uri)
            return
        with self._client.lock(self.name, ttl=self._ttl, timeout=self._timeout) as lease:
            self.passed += 1
            self._fences.admit(lease.fence, lease.token, str(lease.holder))
            yield Passage(self.uri, lease, self._fences)


def attempt(passage: Passage, work: Callable[[Passage], Any]) -> Any:
    """Do the work; what the gate refused is told as such, and whatever else failed says what became of the table."""
    before = len(passage.commits)
    passage.refusal = None
    try:
        return work(passage)
    except BaseException as error:
        refusal = passage.refusal
        if refusal is not None and error is not refusal:
            if len(passage.commits) > before:
                refusal.add_note(_became(passage, before))  # work of several commits
            raise refusal from error
        if not isinstance(error, HoldfastError) or isinstance(error, LeaseLost):
            error.add_note(_became(passage, before))
        raise


def _became(passage: Passage, before: int) -> str:
    made = passage.commits[before:]
    if made:
        return f"before that, version {made[-1]} was committed: what it wrote is there"
    return "nothing was committed: every row is as it was" if passage.lock else "without a lock nobody can say what was"


def _refuse_unguarded(directory: Path) -> None:
    marked = domain.read(directory)
    if marked is not None:
        raise DomainMismatch(str(directory), f"{marked.engine} {marked.place}", "no engine at all (off)")
