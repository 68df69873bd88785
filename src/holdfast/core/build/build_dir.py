"""The build directory of `build_once`: its files, from staging to publication.

A published tree is complete. The tree gets its name by one rename that cannot overwrite, or by a numbered pointer, and
it contains a record that the builder writes last. Before that no reader can see the tree. So a builder that is killed
at any point leaves either the old state or the new one. A lost lease costs work, never data.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import stat
import time
from contextlib import AbstractContextManager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import failpoints
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.host import unavailable_error
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import is_unicode, new_token
from holdfast.shared_files import Folder, UntrustedFile, open_file, opened, retry_if_denied

RECORD = ".holdfast-built"
STAGING = ".holdfast-staging"
_POINTER = ".at-"
_MOVED = ".moved"
_LAYOUT = 1
_KEY_MAX = 400
_PART_MAX = 200
_RECORD_MAX = 65536
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class BuildResult(NamedTuple):
    """A complete build: its path and the fields of its record. `fresh`: true if this call built it."""

    path: Path
    key: str
    digest: str
    fence: int
    at: float
    by: str
    fresh: bool = False


class StagingDir(NamedTuple):
    """A private directory to build in, and the lock that keeps other builders from removing it."""

    path: Path
    lock: int


def checked_key(key: object) -> str:
    """Check a key: a path inside the build directory, without parts that lead out of it or into the library's files."""
    if not isinstance(key, str):
        raise InvalidName(key, f"a key must be text, not {type(key).__name__}")
    parts = key.split("/")
    if not key or "\x00" in key or not is_unicode(key) or len(key.encode()) > _KEY_MAX:
        raise InvalidName(key, f"a key must be text of 1 to {_KEY_MAX} bytes without NUL")
    for part in parts:
        if part in ("", ".", "..") or part.startswith(".holdfast") or len(part.encode()) > _PART_MAX:
            raise InvalidName(key, "a key must stay inside its directory: no '..', no '.', no empty part, not absolute")
    return key


class BuildDir:
    """One key of one build directory."""

    def __init__(self, directory: Path, key: str, *, relocatable: bool) -> None:
        self.directory = directory
        self.key = checked_key(key)
        self.path = directory / self.key
        self._relocatable = relocatable
        self._staging = directory / STAGING
        self._key_hash = f"{blake2b(self.key.encode(), digest_size=8).hexdigest()}."

    # Finding a build.

    def find(self) -> BuildResult | None:
        """Return the published build, if it is complete. Reads once, takes no lock."""
        if not self._relocatable:
            return self._find_by_pointer()
        return self._read(self.path, self.path / RECORD)

    def find_uncached(self) -> BuildResult | None:
        """Like `find`, but refresh the parent directories first, which a network filesystem may have cached."""
        found = self.find()
        if found is None:
            for folder in (self.directory, self.path.parent, self.path):
                with suppress_unless_signal(OSError):
                    os.listdir(folder)
            found = self.find()
        return found

    def _find_by_pointer(self) -> BuildResult | None:
        with suppress_unless_signal(OSError):
            numbers = [entry for entry in os.listdir(self.path) if entry.startswith(_POINTER)]
            for newest in sorted(numbers, reverse=True):
                found = self._read(self.path / newest.removeprefix(_POINTER), self.path / newest)
                if found is not None and found.path.is_dir():
                    return found
        return None

    def _read(self, path: Path, record_path: Path) -> BuildResult | None:
        """Return the build that a record describes; `None` if the record is missing, unreadable or of another key."""
        try:
            with self._opened(record_path.parent) as folder:
                record = json.loads(folder.read(record_path.name, _RECORD_MAX))
            if record["key"] != self.key and not self._is_same_tree(record["key"]):
                return None  # a copy of the tree of another key
            return BuildResult(path, record["key"], record["digest"], record["fence"], record["at"], record["by"])
        except UntrustedFile as error:
            if error.planted:
                raise unavailable_error("directory", error) from error
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise_if_of_signal(error)
            return None

    def _opened(self, path: Path, *, make: bool = False) -> AbstractContextManager[Folder]:
        """Open the build directory or a directory inside it; `make`: create the missing directories."""
        return opened(self.directory, *path.relative_to(self.directory).parts, make=make)

    def _is_same_tree(self, key: str) -> bool:
        """Return whether one key is the end of the other: the same tree, seen from a directory above or below."""
        own, recorded = self.key.split("/"), key.split("/")
        shorter = min(len(own), len(recorded))
        return own[-shorter:] == recorded[-shorter:]

    # Other builds.

    def _check_neighbours(self) -> None:
        """Raise an error if this build would change or remove another published build of the directory."""
        if (outer := self._outer_build()) is not None:
            raise InvalidName(self.key, f"the path is inside the published build {outer!r}; choose a key outside it")
        if BuildDir(self.directory, self.key, relocatable=not self._relocatable).find() is not None:
            rule = f"{self.path} was published with relocatable={not self._relocatable}; use that, or remove it first"
            raise InvalidConfig("relocatable", self._relocatable, rule)
        if (inner := self._inner_build()) is not None:
            rule = f"the path contains the published build {inner}; choose another key, or remove that build first"
            raise InvalidName(self.key, rule)

    def _outer_build(self) -> str | None:
        """Return the key of a published build that contains this path."""
        parts = self.key.split("/")
        for end in range(1, len(parts)):
            key = "/".join(parts[:end])
            if any(BuildDir(self.directory, key, relocatable=way).find() is not None for way in (True, False)):
                return key
        return None

    def _inner_build(self) -> Path | None:
        """Return the path of a published build below this path that is no part of a build of this key."""
        if self._relocatable:
            return None if self.find() is not None else _build_below(self.path)
        with suppress_unless_signal(OSError):
            for entry in os.listdir(self.path):
                is_numbered = entry.isdecimal() and len(entry) <= _PART_MAX
                tree = BuildDir(self.directory, f"{self.key}/{entry}", relocatable=True) if is_numbered else None
                if tree is not None and tree.find() is not None:
                    return tree.path
                inner = None if is_numbered else _build_below(self.path / entry, itself=True)
                if inner is not None:
                    return inner
        return None

    # Building.

    def stage(self, fence: int) -> StagingDir:
        """Create a private directory to build in; remove the leftovers of earlier builders of this key."""
        try:
            path, lock = retry_if_denied(partial(self._make_staging_dir, fence), *self._parents())
            with suppress_unless_signal(OSError):  # a filesystem without flock: only the fence identifies leftovers
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise unavailable_error("directory", error) from error
        failpoints.point("build.staged")
        return StagingDir(path, lock)

    def _make_staging_dir(self, fence: int) -> StagingDir:
        """Remove leftovers of this key, and create the directory to build in."""
        self._check_neighbours()
        self._make(self._staging)
        for leftover in self._staging.iterdir():
            is_older = leftover.name.startswith(self._key_hash) and _fence_in(leftover.name) < fence
            if not is_older or _is_in_use(leftover):
                continue
            if leftover.name.endswith(_MOVED) and _build_below(leftover) is not None:
                self._put_back(leftover)
            else:
                self._clear(leftover, fence)
        path = self._private_path(fence)
        if not self._relocatable:
            self._make(self.path)
            self._clear_unpublished(fence)
            path = self.path / f"{fence:016d}"
        with self._opened(path.parent) as folder:
            return StagingDir(path, folder.new_folder(path.name))  # other users will read the build

    def _private_path(self, fence: int) -> Path:
        """Return a private path that the next builder of this key recognises as a leftover."""
        return self._staging / f"{self._key_hash}{fence:016d}.{new_token()[:8]}"

    def publish(self, staging_dir: StagingDir, fence: int, by: str, bad: BuildResult | None = None) -> BuildResult:
        """Publish the staged tree; return it, or the build that another process published in the meantime.

        `bad`: a complete build that the caller's check refused; the new build replaces it.
        """
        tree = staging_dir.path
        try:
            record = {"v": _LAYOUT, "key": self.key, "digest": digest_of(tree), "fence": fence, "at": time.time()}
            record["by"] = by
            failpoints.point("build.before-record")
            built = (
                self._publish_by_pointer(tree, record)
                if not self._relocatable
                else self._publish_by_rename(tree, record, bad)
            )
        except OSError as error:
            raise unavailable_error("directory", error) from error
        failpoints.point("build.published")
        return built

    def _publish_by_rename(self, tree: Path, record: dict[str, Any], bad: BuildResult | None) -> BuildResult:
        """Publish a tree by a rename; return the build of another process if that came first."""
        with self._opened(tree) as folder:  # a reader that cannot read the record would build again
            folder.write_new(RECORD, json.dumps(record).encode(), lasting=True)
        _sync(tree)
        self._check_neighbours()
        failpoints.point("build.before-publish")
        retry_if_denied(partial(self._make, self.path.parent), *self._parents())
        if retry_if_denied(partial(self._rename_into_place, tree), *self._parents()):
            return self._published(tree, record)
        theirs = self.find_uncached()
        if theirs is not None and theirs != bad:
            return theirs
        if theirs is None:
            self._check_neighbours()
        self._move_away(bad, record["fence"])
        if self._rename_into_place(tree):
            return self._published(tree, record)
        theirs = self.find_uncached()
        if theirs is None:
            self._check_neighbours()
            raise OSError(errno.EEXIST, "an incomplete tree is already there; remove it", str(self.path))
        return theirs

    def _published(self, tree: Path, record: dict[str, Any]) -> BuildResult:
        """Return the build that was just renamed into place; take it back if another build now contains the path."""
        if self._outer_build() is not None:
            self._move(self.path, tree)
            for parent in self.path.parents[: self.key.count("/")]:
                with suppress_unless_signal(OSError), self._opened(parent.parent) as folder:
                    folder.drop_folder(parent.name, ())  # this builder may have created it inside the other build
            self._check_neighbours()
        built = self._built(self.path, record)
        if self.find_uncached() != built._replace(fresh=False):
            raise OSError(errno.ENOENT, "another builder removed it during its publication", str(self.path))
        return built

    def _rename_into_place(self, tree: Path) -> bool:
        try:
            self._move(tree, self.path)
        except OSError as error:
            raise_if_of_signal(error)
            if error.errno in _TAKEN:
                return False
            raise
        return True

    def _move(self, path: Path, new: Path) -> None:
        """Rename a tree inside the build directory; refuse the tree of an untrusted user."""
        with self._opened(path.parent) as folder, self._opened(new.parent) as to:
            folder.check_owner(path.name, folder.status(path.name))
            folder.move(path.name, new.name, to)

    def _remove(self, path: Path) -> None:
        with suppress_unless_signal(OSError), self._opened(path.parent) as folder:
            folder.remove_tree(path.name)

    def _move_away(self, bad: BuildResult | None, fence: int) -> None:
        """Move an incomplete or refused tree out of the way. If a complete build is in it by now, move it back."""
        failpoints.point("build.before-aside")
        away = self._private_path(fence)
        if bad is None:
            # The suffix makes the next builder search the tree for builds if this process is killed before it does.
            away = away.with_name(f"{away.name}{_MOVED}")
        with contextlib.suppress(FileNotFoundError):
            self._move(self.path, away)
        failpoints.point("build.aside")
        moved = self._read(self.path, away / RECORD)
        if (moved is not None and moved != bad) or (bad is None and _build_below(away) is not None):
            self._put_back(away)
        else:
            self._remove(away)

    def _put_back(self, away: Path) -> None:
        """Move a tree with a complete build back to its place; keep it where it is if the place is taken."""
        with suppress_unless_signal(OSError):
            self._move(away, self.path)

    def _publish_by_pointer(self, tree: Path, record: dict[str, Any]) -> BuildResult:
        """Publish a tree that cannot be moved, by a pointer to it. Readers use the pointer with the newest fence."""
        _sync(tree)
        self._check_neighbours()
        draft = self._private_path(record["fence"]).name
        with self._opened(self._staging) as staging, self._opened(self.path) as folder:
            staging.write_new(draft, json.dumps(record).encode(), lasting=True)
            try:
                failpoints.point("build.before-publish")
                staging.link(draft, f"{_POINTER}{tree.name}", folder)
            finally:
                staging.remove(draft)
        found = self._find_by_pointer()
        if found is None:
            raise OSError(errno.ENOENT, "another builder removed it while this builder was suspended", str(tree))
        return self._built(tree, record) if found.path == tree else found

    def _clear_unpublished(self, fence: int) -> None:
        """Remove trees of lower fences that no pointer names and that no builder uses."""
        for entry in os.listdir(self.path):
            tree = self.path / entry
            if not (entry.isdecimal() and int(entry) < fence) or (self.path / f"{_POINTER}{entry}").exists():
                continue
            if not _is_in_use(tree):
                self._clear(tree, fence)

    def _clear(self, leftover: Path, fence: int) -> None:
        """Move the leftovers of a builder away in one step, then remove them.

        The builder may be suspended on another host: when it resumes, its tree is complete or absent.
        """
        away = self._private_path(fence)
        failpoints.point("build.before-clearing")
        with contextlib.suppress(FileNotFoundError):
            self._move(leftover, away)
        failpoints.point("build.clearing")
        self._remove(away)

    def _built(self, path: Path, record: dict[str, Any]) -> BuildResult:
        return BuildResult(path, self.key, record["digest"], record["fence"], record["at"], record["by"], fresh=True)

    def _make(self, folder: Path) -> None:
        """Create a directory inside the build directory; do not follow symbolic links."""
        with self._opened(folder, make=True):
            pass

    def _parents(self) -> list[Path]:
        """Return the directories that another builder may be creating."""
        inside = [each for each in self.path.parents if each.is_relative_to(self.directory)]
        return [self._staging, *reversed(inside)]

    def withdraw(self, staging_dir: StagingDir) -> None:
        """Remove the staged tree of an attempt that was not published, and free its lock."""
        pointed = not self._relocatable and (self.path / f"{_POINTER}{staging_dir.path.name}").exists()
        if not pointed:
            self._remove(staging_dir.path)
        os.close(staging_dir.lock)


def _is_in_use(tree: Path) -> bool:
    """Return whether the builder of a tree, or a program that it started, still uses the tree; only on this host."""
    try:
        with opened(tree.parent) as folder:
            descriptor = open_file(tree.name, folder.descriptor)
    except OSError as error:
        raise_if_of_signal(error)
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise_if_of_signal(error)
        return False
    finally:
        os.close(descriptor)
    return False


def _build_below(tree: Path, *, itself: bool = False) -> Path | None:
    """Return the path of a published build below a tree; `itself`: also the tree, if a record in it says so."""
    if os.path.islink(tree):
        return None
    for parent, _, files in os.walk(tree, onerror=_raise_unless_missing):
        for name in files:
            is_record = name == RECORD and (itself or parent != str(tree))
            if is_record or (name.startswith(_POINTER) and name.removeprefix(_POINTER).isdecimal()):
                return Path(parent)
    return None


def _fence_in(name: str) -> int:
    """Return the fence in the name of a staging directory; 0 if there is none."""
    number = name.split(".")[1]
    return int(number) if number.isdecimal() else 0


def digest_of(tree: Path) -> str:
    """Return a digest of a tree: paths, file types, executable bits and contents. `OSError` if a part is unreadable."""
    digest = blake2b(digest_size=16)
    for parent, folders, files, descriptor in os.fwalk(tree, onerror=_raise):
        folders.sort()
        for name in sorted([*files, *folders]):
            relative = os.path.relpath(os.path.join(parent, name), tree)
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            executable = 0 if stat.S_ISDIR(mode) else mode & 0o111
            digest.update(f"{relative}\0{stat.S_IFMT(mode)}\0{executable:o}\0".encode("utf-8", "surrogateescape"))
            if stat.S_ISLNK(mode):
                digest.update(os.fsencode(os.readlink(name, dir_fd=descriptor)))
            elif stat.S_ISREG(mode):
                with open(open_file(name, descriptor), "rb") as file:
                    while piece := file.read(1 << 20):
                        digest.update(piece)
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _sync(tree: Path) -> None:
    """Write the tree to the disk before it gets its name: after a power cut, the name must not lead to half a tree."""
    with opened(tree) as folder:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(folder.descriptor):  # a network filesystem may report only now that the disk is full
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(tree))
