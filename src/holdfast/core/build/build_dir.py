"""Where something is built once: the files of it, from staging to publication.

What is published is complete: it gets its name by one rename that cannot overwrite, or by a numbered pointer, and it
carries a record of its completion, written last. Before that nobody can see it. So whoever is killed, wherever,
leaves either what was there before or what is there afterwards; and a lease that failed costs work, never data.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import failpoints
from holdfast.errors import InvalidName
from holdfast.host import open_up, patiently, trouble
from holdfast.names import is_unicode, new_token

RECORD = ".holdfast-built"
STAGING = ".holdfast-staging"
_POINTER = ".at-"
_LAYOUT = 1
_KEY_MAX = 400
_PART_MAX = 200
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class BuildResult(NamedTuple):
    """Something that is there and complete: where, and what its record says. `fresh`: this very call built it."""

    path: Path
    key: str
    digest: str
    fence: int
    at: float
    by: str
    fresh: bool = False


class Plot(NamedTuple):
    """A private place to build in, and the lock that keeps others from clearing it away while somebody works there."""

    path: Path
    lock: int


def checked_key(key: object) -> str:
    """A key is a path inside the directory: plain parts, none that leads out of it or into what is ours."""
    if not isinstance(key, str):
        raise InvalidName(key, f"a key must be text, not {type(key).__name__}")
    parts = key.split("/")
    if not key or "\x00" in key or not is_unicode(key) or len(key.encode()) > _KEY_MAX:
        raise InvalidName(key, f"a key must be text of 1 to {_KEY_MAX} bytes without NUL")
    for part in parts:
        if part in ("", ".", "..") or part.startswith(".holdfast") or len(part.encode()) > _PART_MAX:
            raise InvalidName(key, "a key must stay inside its directory: no '..', no '.', no empty part, not absolute")
    return key


class Site:
    """One key of one directory."""

    def __init__(self, directory: Path, key: str, *, movable: bool) -> None:
        self.directory = directory
        self.key = checked_key(key)
        self.path = directory / self.key
        self._movable = movable
        self._staging = directory / STAGING
        self._mark = f"{blake2b(self.key.encode(), digest_size=8).hexdigest()}."

    # Looking.

    def find(self) -> BuildResult | None:
        """What is published, if it is complete. One look, no lock."""
        if not self._movable:
            return self._find_pointed()
        return self._read(self.path, self.path / RECORD)

    def find_afresh(self) -> BuildResult | None:
        """The same, where a network filesystem may have remembered that there was nothing: its parents are reopened."""
        found = self.find()
        if found is None:
            for folder in (self.directory, self.path.parent, self.path):
                with contextlib.suppress(OSError):
                    os.listdir(folder)
            found = self.find()
        return found

    def _find_pointed(self) -> BuildResult | None:
        with contextlib.suppress(OSError):
            numbers = [entry for entry in os.listdir(self.path) if entry.startswith(_POINTER)]
            for newest in sorted(numbers, reverse=True):
                found = self._read(self.path / newest.removeprefix(_POINTER), self.path / newest)
                if found is not None and found.path.is_dir():
                    return found
        return None

    def _read(self, path: Path, record: Path) -> BuildResult | None:
        try:
            descriptor = os.open(record, _READ)
        except OSError:
            return None
        try:
            facts = json.loads(os.read(descriptor, 65536))
            if facts["key"] != self.key and not self._ends_alike(facts["key"]):
                return None  # a tree that somebody copied: it is complete, and another one
            return BuildResult(path, facts["key"], facts["digest"], facts["fence"], facts["at"], facts["by"])
        except (OSError, ValueError, LookupError, TypeError):
            return None
        finally:
            os.close(descriptor)

    def _ends_alike(self, key: str) -> bool:
        """Whether the shorter of both keys is the end of the other: one tree, by a directory above or below."""
        mine, its = self.key.split("/"), key.split("/")
        shorter = min(len(mine), len(its))
        return mine[-shorter:] == its[-shorter:]

    # Building.

    def stage(self, fence: int) -> Plot:
        """A private place to build in; what builders before us left of this key is cleared away."""
        try:
            path = patiently(partial(self._place, fence), *self._folders())
            open_up(path, self.directory)  # it becomes what others read
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # not every filesystem can; then the fence alone tells what is left over
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise trouble("directory", error) from error
        failpoints.point("build.staged")
        return Plot(path, lock)

    def _place(self, fence: int) -> Path:
        self._make(self._staging)
        for left in self._staging.iterdir():
            if left.name.startswith(self._mark) and _number(left.name) < fence and not _is_worked_in(left):
                self._clear(left, fence)
        path = self._private(fence)
        if not self._movable:
            self._make(self.path)
            self._clear_pointed(fence)
            path = self.path / f"{fence:016d}"
        path.mkdir()
        return path

    def _private(self, fence: int) -> Path:
        """A name that the next builder of this key knows as left over."""
        return self._staging / f"{self._mark}{fence:016d}.{new_token()[:8]}"

    def publish(self, plot: Plot, fence: int, by: str, bad: BuildResult | None = None) -> BuildResult:
        """Let everybody see it, whole; or what somebody else has published in the meantime.

        `bad` is what was complete and was found wanting all the same: it makes room.
        """
        place = plot.path
        try:
            record = {"v": _LAYOUT, "key": self.key, "digest": digest_of(place), "fence": fence, "at": time.time()}
            record["by"] = by
            failpoints.point("build.before-record")
            built = self._point(place, record) if not self._movable else self._move(place, record, bad)
        except OSError as error:
            raise trouble("directory", error) from error
        failpoints.point("build.published")
        return built

    def _move(self, place: Path, record: dict[str, Any], bad: BuildResult | None) -> BuildResult:
        self._write(place / RECORD, record)
        _sync(place)
        failpoints.point("build.before-publish")
        patiently(partial(self._make, self.path.parent), *self._folders())
        if patiently(partial(self._renamed, place), *self._folders()):
            return self._built(self.path, record)
        theirs = self.find_afresh()
        if theirs is not None and theirs != bad:
            return theirs
        self._put_aside(bad, record["fence"])
        if self._renamed(place):
            return self._built(self.path, record)
        theirs = self.find_afresh()
        if theirs is None:
            raise OSError(errno.EEXIST, "something that is not complete is in the way", str(self.path))
        return theirs

    def _renamed(self, place: Path) -> bool:
        try:
            os.rename(place, self.path)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        return True

    def _put_aside(self, bad: BuildResult | None, fence: int) -> None:
        """What stands there and is not complete, or not good. If it turns out to be something else, it goes back."""
        failpoints.point("build.before-aside")
        aside = self._private(fence)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
        failpoints.point("build.aside")
        moved = self._read(self.path, aside / RECORD)
        if moved is not None and moved != bad:
            with contextlib.suppress(OSError):
                os.rename(aside, self.path)
                return
        _remove(aside)

    def _point(self, place: Path, record: dict[str, Any]) -> BuildResult:
        """Trees that may not move stand where they were built; the pointer with the highest number is read."""
        _sync(place)
        draft = self._private(record["fence"])
        try:
            self._write(draft, record)
            failpoints.point("build.before-publish")
            os.link(draft, self.path / f"{_POINTER}{place.name}")
        finally:
            draft.unlink(missing_ok=True)
        found = self._find_pointed()
        if found is None:
            raise OSError(errno.ENOENT, "it was cleared away: its builder slept, and another came", str(place))
        return self._built(place, record) if found.path == place else found

    def _write(self, path: Path, record: dict[str, Any]) -> None:
        """Readable for whoever reads the directory: who could not read it would build again."""
        with path.open("x", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            open_up(file.fileno(), self.directory)
            os.fsync(file.fileno())

    def _clear_pointed(self, fence: int) -> None:
        """Trees of lower numbers that no pointer names, and in which nobody works: their builders are gone."""
        for entry in os.listdir(self.path):
            tree = self.path / entry
            if not (entry.isdecimal() and int(entry) < fence) or (self.path / f"{_POINTER}{entry}").exists():
                continue
            if not _is_worked_in(tree):
                self._clear(tree, fence)

    def _clear(self, left: Path, fence: int) -> None:
        """What a builder left goes away in one step, and is removed then.

        The builder may be of another host and only asleep: what it publishes when it wakes is whole, or not there.
        """
        aside = self._private(fence)
        failpoints.point("build.before-clearing")
        with contextlib.suppress(FileNotFoundError):
            os.rename(left, aside)
        failpoints.point("build.clearing")
        _remove(aside)

    def _built(self, path: Path, record: dict[str, Any]) -> BuildResult:
        return BuildResult(path, self.key, record["digest"], record["fence"], record["at"], record["by"], fresh=True)

    def _make(self, folder: Path) -> None:
        """A folder inside the directory; a link that somebody planted is not followed."""
        for each in [*reversed(folder.parents), folder]:
            if each == self.directory or not each.is_relative_to(self.directory):
                continue
            with contextlib.suppress(FileExistsError):
                each.mkdir()
                open_up(each, self.directory)
            if not stat.S_ISDIR(each.lstat().st_mode):
                raise OSError(errno.ENOTDIR, "it must be a directory, not a link or a file", str(each))

    def _folders(self) -> list[Path]:
        """Those that another builder may just be making."""
        inside = [each for each in self.path.parents if each.is_relative_to(self.directory)]
        return [self._staging, *reversed(inside)]

    def withdraw(self, plot: Plot) -> None:
        """Nothing of an attempt that came to nothing stays."""
        pointed = not self._movable and (self.path / f"{_POINTER}{plot.path.name}").exists()
        if not pointed:
            shutil.rmtree(plot.path, ignore_errors=True)
        os.close(plot.lock)


def _is_worked_in(place: Path) -> bool:
    """Whether its builder, or a program that it started, is still at work there; by the kernel of this machine."""
    try:
        descriptor = os.open(place, _READ)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _number(name: str) -> int:
    number = name.split(".")[1]
    return int(number) if number.isdecimal() else 0


def digest_of(tree: Path) -> str:
    """One figure for all that is in a tree: paths, kinds, executability and contents. `OSError` if not all of it."""
    figure = blake2b(digest_size=16)
    for at, folders, files in os.walk(tree, onerror=_raise):
        folders.sort()
        for name in sorted([*files, *folders]):
            path = os.path.join(at, name)
            relative = os.path.relpath(path, tree)
            mode = os.lstat(path).st_mode
            runs = 0 if stat.S_ISDIR(mode) else mode & 0o111
            figure.update(f"{relative}\0{stat.S_IFMT(mode)}\0{runs:o}\0".encode("utf-8", "surrogateescape"))
            if stat.S_ISLNK(mode):
                figure.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    while piece := file.read(1 << 20):
                        figure.update(piece)
    return figure.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _sync(place: Path) -> None:
    """All of it on the disk before its name is: a power cut must not leave a whole name on half a tree."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        if syncfs is None or syncfs(descriptor):
            os.sync()
    finally:
        os.close(descriptor)
