"""The shared directory: open it, test it, prepare it, and never mistake another directory for it.

The engine keeps everything in `.holdfast` inside the directory that the URL names. That directory must exist: the
engine does not create it, so that it never uses an empty mount point instead of a volume that is not mounted. The first
open tests every operation that the engine relies on. The engine follows no symbolic link inside the directory. It
refuses a `.holdfast` of another layout, and changes nothing in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engines.files import HOME
from holdfast.engines.files.codec import LAYOUT
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import KNOWN_ERRORS, NETWORK, filesystem, unavailable_error
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import new_token
from holdfast.shared_files import Folder, is_movable, retry_if_denied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "file"
# How the names of temporary entries begin: a trial of the filesystem, the draft of a file.
_TRIAL, _DRAFT = ".try.", ".draft."
UNFINISHED = (_TRIAL, _DRAFT)
_REFUSED = ("cifs", "smb")
_SHORT = 200
# The layout of a `.holdfast` without a layout file.
_UNMARKED = "1"


class Root:
    """One shared directory, as one client has it open."""

    home_folder: Folder
    clients_folder: Folder
    leases_folder: Folder

    def __init__(self, root: Path) -> None:
        self.directory = root
        self.home = root / HOME
        self.kind = filesystem(root)
        self.network = self.kind.startswith(NETWORK)
        if self.kind.startswith(_REFUSED):
            raise InvalidConfig("url", f"file://{root}", f"the filesystem there is {self.kind}, which was not tested")
        try:
            self.movable = is_movable(root)
        except OSError as error:
            raise unavailable_error(NAME, error) from error
        self.leases = self.clients = -1

    def open(self) -> None:
        """Create the missing folders, and test what the engine relies on. A second call does nothing."""
        if self.leases >= 0:
            return
        try:
            with Folder(self.directory) as above:
                retry_if_denied(partial(self._open_all, above)) if above.shared else self._open_all(above)
        except OSError as error:
            raise self.unavailable(error) from error

    def _open_all(self, above: Folder) -> None:
        try:
            self.home_folder = home = above.make_folder(HOME)
            if self._is_prepared(home):
                self._refuse_other_layout(home)
            else:
                _test_filesystem(self, home)
                self._publish("layout", str(LAYOUT), home)
            self.clients_folder = home.make_folder("clients")
            self.leases_folder = home.make_folder("leases")
            self.clients, self.leases = self.clients_folder.descriptor, self.leases_folder.descriptor
        except BaseException:
            self.close()
            raise

    def _is_prepared(self, home: Folder) -> bool:
        """Return true if a client has tested the filesystem before: the folder of leases is created last."""
        with contextlib.suppress(FileNotFoundError):
            home.status("leases")
            return True
        return False

    def _refuse_other_layout(self, home: Folder) -> None:
        layout = self._read("layout", home) or _UNMARKED
        if layout != str(LAYOUT):
            detail = (
                f"{self.home} has layout {layout}, and this version of holdfast uses layout {LAYOUT}: stop every "
                f"process that uses it and move {self.home} away, or install the version that wrote it"
            )
            raise Unavailable(NAME, UnavailableReason.OTHER_LAYOUT, detail)

    def location(self) -> str:
        """Return an id of this directory, which is the same through every path and mount that leads here."""
        self.open()
        home = self.home_folder
        try:
            found = self._read("id", home) or self._publish("id", new_token(), home)
        except OSError as error:
            raise self.unavailable(error) from error
        if not found:
            raise Unavailable(
                NAME,
                UnavailableReason.CORRUPT,
                f"{self.home}/id is empty: remove it when no process uses the directory",
            )
        return found

    def _read(self, name: str, home: Folder) -> str:
        """Return the content of a small file; empty if there is none."""
        try:
            return home.read(name, _SHORT).decode("ascii", "replace")
        except FileNotFoundError:
            return ""

    def _publish(self, name: str, content: str, home: Folder) -> str:
        """Create a small file with this content, whole or not at all; return the content that the first writer gave."""
        draft = f"{_DRAFT}{new_token()}"
        home.write_new(draft, content.encode(), lasting=True)  # all later clients rely on this content
        with contextlib.suppress(FileExistsError):
            home.link(draft, name)
        home.remove(draft)
        return self._read(name, home)

    def unavailable(self, error: OSError) -> Unavailable:
        """Return the `Unavailable` for an error of the system; it names `.holdfast`, not a file inside."""
        raise_if_of_signal(error)
        if not os.path.isabs(str(error.filename)):
            error.filename = str(self.home)
        return unavailable_error(NAME, error)

    def refuse_replaced(self) -> None:
        """Raise `Unavailable` if the path leads elsewhere now: the volume is gone, or the directory is another one."""
        try:
            seen = os.stat(self.home, follow_symlinks=False)
        except OSError as error:
            raise_if_of_signal(error)
            raise Unavailable(NAME, UnavailableReason.REPLACED, f"{self.home}: {error.strerror}") from error
        if (seen.st_dev, seen.st_ino) != self.home_folder.identity:
            raise Unavailable(
                NAME, UnavailableReason.REPLACED, f"{self.home} is no longer the directory that was opened"
            )

    def close(self) -> None:
        """Close the descriptors. A second call, also after an interrupt, closes no descriptor again."""
        self.leases = self.clients = -1
        for name in ("home_folder", "clients_folder", "leases_folder"):
            if hasattr(self, name):
                getattr(self, name).close()


def _test_filesystem(root: Root, home: Folder) -> None:
    """Test on this filesystem every operation that only one client may win; `InvalidConfig` names those that fail."""
    name = f"{_TRIAL}{new_token()}"
    trial = home.make_folder(name)
    try:
        failed = [what for what, holds in _TRIALS if not _holds(holds, root, trial)]
    finally:
        trial.close()
        drop_unfinished(home, name)
    if failed:
        rule = f"the filesystem there ({root.kind or 'of unknown type'}) has no {', no '.join(failed)}"
        raise InvalidConfig("url", f"file://{root.directory}", rule)


def _holds(trial: Callable[[Root, Folder], bool], root: Root, folder: Folder) -> bool:
    try:
        return trial(root, folder)
    except OSError as error:
        raise_if_of_signal(error)
        if error.errno in KNOWN_ERRORS:
            raise
        return False


def _links(_: Root, folder: Folder) -> bool:
    folder.write_new("a", b"a")
    folder.write_new("b", b"b")
    folder.link("a", "c")
    try:
        folder.link("b", "c")
    except FileExistsError:
        return True
    return False


def _renames(_: Root, folder: Folder) -> bool:
    for name, inside in (("d", "x"), ("e", "y"), ("f", "")):
        folder.make_folder(name).close()
        if inside:
            folder.write_new(f"{name}/{inside}", b"")
    try:
        folder.move("d", "e")
    except OSError as error:
        raise_if_of_signal(error)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        folder.move("d", "f")  # a rename replaces an empty folder
        folder.status("f/x")
        return True
    return False


def _locks(root: Root, folder: Folder) -> bool:
    if root.network:
        return True  # the engine does not rely on locks there
    descriptors = [folder.open_or_create("l") for _ in range(2)]
    try:
        fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptors[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return False


_TRIALS = (
    ("link that only one can win", _links),
    ("rename that cannot overwrite", _renames),
    ("lock that a second descriptor respects", _locks),
)


def drop_unfinished(home: Folder, name: str) -> None:
    """Remove the draft of a file, or a trial: only the files that a trial has, because another user may have moved a
    folder here.
    """
    with suppress_unless_signal(OSError):
        if not stat.S_ISDIR(home.status(name).st_mode):
            home.remove(name)
            return
        with home.open_folder(name) as trial:
            for inside in ("d", "e", "f"):
                trial.drop_folder(inside, ("x", "y"))
        home.drop_folder(name, ("a", "b", "c", "l"))
