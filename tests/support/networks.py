"""A network for tests that can be partitioned: every program has its own network namespace, as if on its own machine.

Nothing outside changes. The network exists in namespaces of one process, which `inside` starts, and ends with it. It
needs no rights beyond those that any user has on a kernel with user namespaces.

    subprocess.run(inside(sys.executable, "story.py"))      # and in story.py:

    with Network() as network:
        one, other = network.home("one"), network.home("other")
        with Server("valkey", home=one) as server:
            network.cut([one], [other])                     # silently, as a broken switch would: connections stay open

A process outside the homes, such as the story itself, reaches all of them, whatever is cut.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.testing.servers import Home

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def inside(*command: str) -> list[str]:
    """Return a command that runs `command` in a network of its own."""
    return [*_UNSHARE, *command]


def missing() -> str:
    """Return why this machine cannot make such a network; empty if it can."""
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            return f"there is no program {program!r}: install util-linux and iproute2"
    tried = "mount -t tmpfs none /run && mkdir /run/netns && ip netns add x && ip link add x0 type veth peer name x1"
    done = subprocess.run(inside("sh", "-c", tried), check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no network name spaces, be root: {done.stderr.strip()}"


class Network:
    """Homes that are joined by a hub, which routes between them except where `cut` forbids it."""

    def __init__(self) -> None:
        self._homes: dict[str, Home] = {}
        self._cut: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        # Names of namespaces are files; a new mount keeps ours apart.
        _run("mount", "-t", "tmpfs", "none", "/run")
        Path("/run/netns").mkdir()
        _run("ip", "link", "set", "lo", "up")
        _FORWARD.write_text("1")
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the network ends with this process."""

    def home(self, name: str) -> Home:
        """Return the home of this name; create it at the first call."""
        if name not in self._homes:
            number = len(self._homes) + 1
            here, there, link = f"10.77.{number}.1", f"10.77.{number}.2", f"v{number}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "address", "add", f"{here}/24", "dev", link)
            _run("ip", "link", "set", link, "up")
            _run("ip", "-n", name, "address", "add", f"{there}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "-n", name, "route", "add", "default", "via", here)
            self._homes[name] = Home(there, ("ip", "netns", "exec", name))
        return self._homes[name]

    def cut(self, some: Iterable[Home], others: Iterable[Home]) -> None:
        """Drop every packet between these homes silently, in both directions."""
        others = list(others)
        for one in some:
            for other in others:
                for a, b in ((one, other), (other, one)):
                    rule = ("from", a.host, "to", b.host, "blackhole")
                    _run("ip", "rule", "add", *rule)
                    self._cut.append(rule)

    def heal(self) -> None:
        """Deliver all packets again."""
        while self._cut:
            _run("ip", "rule", "delete", *self._cut.pop())


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
