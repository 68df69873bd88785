"""npm packages in a directory that many workers share, each installed once.

An alias `<name>_<version>` with its dependencies is one directory under `node_modules`. A worker builds it in private
and publishes it by one rename. So versions exist side by side, workers install different packages at the same time, and
no reader sees a partly extracted package. The worker rewrites the repository's `package.json` last, as a whole, under a
short lease of its own. npm itself never runs inside the shared directory.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import failpoints
from holdfast.clock import Seconds, seconds_of
from holdfast.contrib.npm_runs import NpmRuns, npm_environment, npm_error
from holdfast.core.build.build_dir import RECORD, BuildDir, BuildResult
from holdfast.core.lease.lock import TTL_S
from holdfast.errors import BuildFailed, HoldfastError, InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.host import out_of_threads, unavailable_error
from holdfast.names import new_token
from holdfast.shared_files import opened

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast
    from holdfast.core.build.build_once import Staging

log = logging.getLogger("holdfast")

MODULES = "node_modules"
MANIFEST = "package.json"
SETTINGS = ".npmrc"
LOCKFILE = ".package-lock.json"
NPM_S = 600.0
_AT_ONCE = 4
_MANIFEST_TTL_S = 10.0
_MANIFEST_MAX = 64 * 1024 * 1024
_PAUSE_S = 1.0
_LISTING = "manifest/"
_NAME = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")
_ALLOWED = re.compile(r"@?[A-Za-z0-9~][A-Za-z0-9._~-]*(/[A-Za-z0-9._~-]*)?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")
# A version contains no `_`, which separates name and version in an alias, so no two packages share an alias.
_EXACT = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]*)?")
# Errors of npm that a retry cannot fix.
_PERMANENT = ("E404", "ETARGET", "EINVALIDTAGNAME", "ENOVERSIONS", "E401", "E403", "ENOSPC", "EROFS", "EACCES")

# npm ends with 0 although it could not write some files of a package; it only warns about them.
_NOT_EXTRACTED = re.compile(r"TAR_(?!ENTRY_INFO|ENTRY_UNSUPPORTED)[A-Z_]+[^\n]*")

Say = Callable[[str], None]


class Spec(NamedTuple):
    """A package, and a version or a tag."""

    name: str
    version: str

    @property
    def alias(self) -> str:
        return f"{self.name}_{self.version}"


class Installed(NamedTuple):
    """The result for one specifier. `fresh`: this call installed it. `error` is empty on success."""

    spec: str
    alias: str
    path: str
    fresh: bool
    seconds: float
    fence: int | None = None
    skipped: str = ""
    error: str = ""


def parsed(text: str) -> Spec:
    """Parse `name@version`, split at the last `@`. Without a version, `install` warns and installs the newest one."""
    if not isinstance(text, str):
        raise InvalidName(text, f"a package must be text, not {type(text).__name__}")
    name, at, version = text.rpartition("@")
    if not at or not name:
        name, version = text, ""
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise InvalidName(text, "it must be name@version, with a valid npm name")
    if version and not _VERSION.fullmatch(version):
        raise InvalidName(text, "the version must be exact or a tag, such as 1.2.3 or latest")
    return Spec(name, version)


def not_there(directory: Path) -> InvalidConfig:
    """Return the error for a missing directory.

    The library never creates the directory: after a typing mistake, each worker would have a directory of its own.
    """
    return InvalidConfig("repo-dir", str(directory), "it is not a directory; create it where all workers share it")


class Repo:
    """A directory with `node_modules` and a manifest, shared by many workers."""

    def __init__(
        self,
        client: Holdfast | None,
        directory: str | os.PathLike[str],
        *,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        npm: str = "npm",
        npm_timeout: Seconds = NPM_S,
        retries: int = 2,
        run_scripts: bool = False,
        say: Say = log.info,
        warn: Say = log.warning,
    ) -> None:
        """Use `directory` under the leases of `client`.

        `client`: `None` turns locking off: workers may install a package twice, but never half of it. `ttl`, `timeout`:
        of the leases, in seconds. `npm`: the program; `npm_timeout`: seconds for one run; `retries`: more attempts
        after a failure. `run_scripts`: let npm run the lifecycle scripts of the packages, which are programs of their
        authors. `say`, `warn`: receive progress and warnings.
        """
        self.directory = Path(os.path.abspath(directory))
        self.modules = self.directory / MODULES
        self._client = client
        self._ttl = ttl
        self._timeout = timeout
        self._npm = npm
        self._npm_timeout = seconds_of(npm_timeout, setting="npm_timeout")
        self._retries = retries
        self._run_scripts = run_scripts
        self._say = say
        self._warn = warn
        if shutil.which(npm) is None:
            raise InvalidConfig("npm", npm, "the program is not on the PATH")

    def install(self, specs: Sequence[str], *, allow: Iterable[str] = ()) -> list[Installed]:
        """Install all `specs`, several at the same time; return a result for each. A failure does not stop the others.

        `allow`: names of packages, scopes (`@acme`), or beginnings of names that end in `-`, `.`, `_` or `/`; other
        packages are skipped, but not if they are dependencies. Empty: all names.
        """
        if isinstance(specs, str):
            raise InvalidConfig("specs", specs, "it must be a list of packages, not one")
        wanted = [(text, parsed(text)) for text in specs]
        allowed = _allowed(allow)
        if not self.directory.is_dir():
            raise not_there(self.directory)
        self._make_modules()
        self._manifest()  # raises before any work if the manifest cannot be read
        runs = NpmRuns(self._npm, self._npm_timeout, npm_environment(self.directory / SETTINGS))
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            try:
                begun = [pool.submit(self._install, text, spec, allowed, runs) for text, spec in wanted]
            except RuntimeError as error:
                raise out_of_threads("npm", error) from error
            done = [each.result() for each in begun]
        except BaseException:
            runs.end()
            raise
        finally:
            # After an interrupt do not wait for threads that wait for another worker: closing the client ends them.
            pool.shutdown(wait=False, cancel_futures=True)
        return done

    def _make_modules(self) -> None:
        try:
            with opened(self.directory, MODULES, make=True):
                pass
        except OSError as error:
            raise unavailable_error("directory", error) from error

    def _install(self, text: str, spec: Spec, allowed: tuple[str, ...], runs: NpmRuns) -> Installed:
        began = time.monotonic()
        try:
            if spec.version == "local" or (allowed and not _admits(allowed, spec.name)):
                why = "local" if spec.version == "local" else "not on the allow list"
                self._warn(f"{text} is skipped: {why}")
                return Installed(text, spec.alias, "", fresh=False, seconds=0.0, skipped=why)
            spec = self._resolved(text, spec, runs)
            built = self._built(spec, runs)
            self._list(spec)
        except (HoldfastError, OSError) as error:
            what = self._explain(error, spec)
            return Installed(text, spec.alias, "", fresh=False, seconds=time.monotonic() - began, error=what)
        seconds = time.monotonic() - began
        if built.fresh:
            self._say(f"installed {spec.alias} in {seconds:.1f} s")
        return Installed(text, spec.alias, str(built.path), built.fresh, seconds, built.fence)

    def _explain(self, error: HoldfastError | OSError, spec: Spec) -> str:
        if isinstance(error, OSError) and not isinstance(error, HoldfastError):
            return str(unavailable_error("directory", error))
        if not isinstance(error, NotAcquired):
            return str(error)
        place, doing = self.modules / spec.alias, "installing"
        if error.name.startswith(_LISTING):
            place, doing = self.directory / MANIFEST, "writing"
        return f"waited {error.waited:.0f} s for {spec.alias} in {place}, which {error.holder} is {doing}"

    def _resolved(self, text: str, spec: Spec, runs: NpmRuns) -> Spec:
        """Replace a tag by the version that it names now, so that an alias is one version for ever."""
        if _EXACT.fullmatch(spec.version):
            return spec
        if not spec.version:
            self._warn(f"{text} has no version: installing the newest")
        wanted_version = f"{spec.name}@{spec.version or 'latest'}"
        for attempt in range(self._retries + 1):
            done = runs.run(("view", wanted_version, "version", "--json"), text, self.directory)
            if done.returncode == 0:
                return Spec(spec.name, _version(done.stdout, text, wanted_version))
            if not self._may_retry(done, attempt, f"look up {wanted_version}", runs):
                break
        raise BuildFailed(text, "npm view", npm_error(done))

    def _may_retry(self, done: subprocess.CompletedProcess[str], attempt: int, what: str, runs: NpmRuns) -> bool:
        """Log the failure; pause and return true if a retry may help. Do not retry a run that an interrupt ended."""
        if not runs.pause(0):
            return False
        self._warn(f"attempt {attempt + 1} to {what} failed: {npm_error(done)}")
        is_permanent = any(f"code {code}" in done.stderr or f"_ERROR {code}" in done.stderr for code in _PERMANENT)
        if is_permanent or attempt == self._retries:
            return False
        return runs.pause(_PAUSE_S * (attempt + 1))

    def _built(self, spec: Spec, runs: NpmRuns) -> BuildResult:
        def build(staging: Staging) -> None:
            self._say(f"installing {spec.alias}")
            self._fill(Path(staging), spec, runs, pass_fds=staging.liveness_fds)

        if self._client is None:
            return self._built_unlocked(spec, runs)
        found = BuildDir(self.modules, spec.alias, relocatable=True).find()
        if found is not None:
            return found
        try:
            return self._client.build_once(self.modules, spec.alias, build, ttl=self._ttl, timeout=0)
        except NotAcquired as busy:
            self._say(f"another worker is installing {spec.alias}: {busy.holder}; waiting")
        return self._client.build_once(self.modules, spec.alias, build, ttl=self._ttl, timeout=self._timeout)

    def _built_unlocked(self, spec: Spec, runs: NpmRuns) -> BuildResult:
        build_dir = BuildDir(self.modules, spec.alias, relocatable=True)
        found = build_dir.find()
        if found is not None:
            return found
        self._say(f"installing {spec.alias}")
        fence = time.time_ns() // 1000
        staging_dir = build_dir.stage(fence)
        try:
            self._fill(staging_dir.path, spec, runs, pass_fds=(staging_dir.lock,))
            return build_dir.publish(staging_dir, fence, f"{os.uname().nodename}:{os.getpid()}")
        finally:
            build_dir.withdraw(staging_dir)

    def _fill(self, place: Path, spec: Spec, runs: NpmRuns, *, pass_fds: tuple[int, ...]) -> None:
        """Run npm with a prefix inside the private directory, then move the package up to be that directory."""
        for attempt in range(self._retries + 1):
            prefix = self._prefix(place, attempt)
            # The log level makes npm print the warnings that `_fault_in` reads, whatever its settings say.
            arguments = ["install", "--no-audit", "--no-fund", "--no-package-lock", "--install-strategy=nested"]
            arguments += ["--loglevel=warn", *(() if self._run_scripts else ("--ignore-scripts",))]
            source = f"{spec.alias}@npm:{spec.name}@{spec.version}"
            done = runs.run((*arguments, "--prefix", str(prefix), source), spec.alias, prefix, pass_fds)
            if done.returncode == 0:
                fault = _fault_in(prefix, spec.alias, done.stderr)
                if not fault:
                    _lift(prefix, spec.alias, place)
                    return
                done.stderr = f"npm left an incomplete tree: {fault}"
            with opened(place) as folder:
                folder.remove_tree(prefix.name)
            if not self._may_retry(done, attempt, f"install {spec.alias}", runs):
                break
        raise BuildFailed(spec.alias, "npm install", f"{npm_error(done)} (attempt {attempt + 1})")

    def _prefix(self, place: Path, attempt: int) -> Path:
        """Create the prefix of one run of npm, with the repository's settings: its registries and credentials."""
        prefix = place / f".npm-{attempt}"
        with opened(place, prefix.name, make=True) as folder:
            folder.write_new(MANIFEST, b'{"private": true}')
            if (self.directory / SETTINGS).exists():
                folder.symlink(SETTINGS, str(self.directory / SETTINGS))
        return prefix

    # The manifest.

    def _manifest(self) -> dict[str, Any]:
        """Return the content of `package.json`, or a new manifest; raise `BuildFailed` if the file cannot be read.

        The library never overwrites a manifest that it cannot read.
        """
        path = self.directory / MANIFEST
        try:
            with opened(self.directory) as folder:
                text = folder.read(MANIFEST, _MANIFEST_MAX, any_mode=True).decode()
        except FileNotFoundError:
            return {"name": "holdfast-repo", "private": True, "version": "1.0.0", "dependencies": {}}
        except (OSError, UnicodeDecodeError) as error:
            raise BuildFailed(str(path), "reading the manifest", str(error)) from error
        try:
            manifest = json.loads(text)
            if not isinstance(manifest, dict) or not isinstance(manifest.setdefault("dependencies", {}), dict):
                raise TypeError("it is not an object with dependencies")
        except (ValueError, TypeError) as error:
            raise BuildFailed(str(path), "reading the manifest", f"{error}; it was not changed") from error
        return manifest

    def _list(self, spec: Spec) -> None:
        """Add the alias to the manifest: read and rewrite it under a short lease, as the last step."""
        source = f"npm:{spec.name}@{spec.version}"
        if self._manifest()["dependencies"].get(spec.alias) == source:
            return
        if self._client is None:
            self._rewrite(spec.alias, source)
            return
        name = f"{_LISTING}{self._client.domain(self.modules).id}"
        for last in (False, True):
            try:
                with self._client.lock(name, ttl=_MANIFEST_TTL_S, timeout=self._timeout) as lease:
                    self._rewrite(spec.alias, source, lease.check)
                    return
            except LeaseLost:
                if last:
                    raise
                # This process was suspended and may have overwritten entries of others: add all of them again.

    def _published(self) -> dict[str, str]:
        """Return every complete alias with its source."""
        found = {}
        for record in (*self.modules.glob(f"*_*/{RECORD}"), *self.modules.glob(f"@*/*_*/{RECORD}")):
            alias = str(record.parent.relative_to(self.modules))
            name, _, version = alias.rpartition("_")
            if _EXACT.fullmatch(version):
                found[alias] = f"npm:{name}@{version}"
        return found

    def _rewrite(self, alias: str, source: str, check: Callable[[], None] = lambda: None) -> None:
        manifest = self._manifest()
        named = {**self._published(), **manifest["dependencies"], alias: source}
        manifest["dependencies"] = dict(sorted(named.items()))
        draft = f".{MANIFEST}.{new_token()}"
        with opened(self.directory) as folder:
            folder.write_new(draft, json.dumps(manifest, indent=2).encode(), lasting=True)
            try:
                check()
                failpoints.point("npm.before-manifest")
                folder.move(draft, MANIFEST)
            finally:
                folder.remove(draft)


def _allowed(allow: Iterable[str]) -> tuple[str, ...]:
    """Check the allow list: an empty entry would admit every package."""
    allowed = (allow,) if isinstance(allow, str) else tuple(allow)
    for each in allowed:
        if not isinstance(each, str) or not _ALLOWED.fullmatch(each):
            raise InvalidConfig("allow", each, "it must be a package, a scope such as @acme, or a beginning of a name")
    return allowed


def _admits(allowed: tuple[str, ...], name: str) -> bool:
    """Return whether an entry is the name, its scope, or a beginning that ends where a part of the name ends."""
    return any(name == each or name.startswith(each if each[-1] in "-._/" else f"{each}/") for each in allowed)


def _fault_in(prefix: Path, alias: str, stderr: str) -> str:
    """Return why the tree that npm left is incomplete; empty if it is complete."""
    unwritten = _NOT_EXTRACTED.findall(stderr)
    if unwritten:
        return f"{unwritten[0].strip()} ({len(unwritten)} such warnings)"
    listing = prefix / MODULES / LOCKFILE
    try:
        packages = json.loads(listing.read_bytes())["packages"]  # npm writes it last, if it can
        for path, about in packages.items():
            package = prefix / path
            if not about.get("link") and (package.exists() or not about.get("optional")):
                json.loads((package / MANIFEST).read_bytes())
    except OSError as error:
        return f"{error.filename}: {error.strerror} ({shutil.disk_usage(prefix).free:,} bytes are free on this disk)"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"a {MANIFEST} or {LOCKFILE} in it cannot be read: {error}"
    return "" if f"{MODULES}/{alias}" in packages else f"{listing} does not list {alias}"


def _lift(prefix: Path, alias: str, place: Path) -> None:
    """Move the package's files into the private directory, and the packages beside it (its peers) below them."""
    with opened(place) as top, opened(place, prefix.name, MODULES, *alias.split("/")) as package:
        for entry in package.names():
            package.move(entry, entry, top)
    for peer in _packages(place, prefix.name, MODULES):
        *scope, name = peer.split("/")
        if peer == alias or (place / MODULES / peer).exists():
            continue
        with (
            opened(place, prefix.name, MODULES, *scope) as beside,
            opened(place, MODULES, *scope, make=True) as inside,
        ):
            beside.move(name, name, inside)
    with opened(place) as top:
        top.remove_tree(prefix.name)


def _packages(place: Path, *parts: str) -> list[str]:
    """Return the names of the packages in a directory that contain a file, those of scopes with their scope."""
    found = []
    with opened(place, *parts) as folder:
        for name in folder.names():
            if name.startswith("@"):
                found += [f"{name}/{each}" for each in _packages(place, *parts, name)]
            elif not name.startswith("."):
                with opened(place, *parts, name) as package:
                    found += [name] if package.names() else []
    return found


def _version(output: str, text: str, wanted: str) -> str:
    """Return the version that npm printed, or the last of several. Check it, because it becomes part of a path."""
    try:
        named = json.loads(output or '""')
    except ValueError:
        named = output.strip()
    version = named[-1] if isinstance(named, list) and named else named
    if not isinstance(version, str) or not _EXACT.fullmatch(version):
        raise BuildFailed(text, "npm view", f"npm knows no version of {wanted}")
    return version
