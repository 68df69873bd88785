"""What is tried on real NFS, and what must come of it. Each story tells in a line what it saw, or is `Broken`."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from lab import HERE, HUB, ROOT, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab import Host, Job, Lab

TTL_S = 3.0
TURN_TTL_S = 8.0  # the worker's
# A host of the lab is slow, and its waiters look every half second: what is asserted is the order of magnitude.
SLACK_S = 8.0
STEADY, TURNS, DEATHS = 3, 10, 3
TRIALS = 5
BIRTHS = 40
PACKAGES = ("alpha@1.0.0", "beta@1.0.0", "gamma@1.0.0")
LAWS = ("exclusion", "loss", "handing", "sending_twice", "closing", "leader", "building")
# Six threads in twenty seconds, which waiters that look by themselves do not promise (`exclusion` is that law, here);
# and a law for which SQLite would have to be on NFS, where it is refused.
UNFIT = ("never_two_holders", "another_engine_guards")
EXPORT = "/run/export"
GROUP, USERS, UMASKS, USER_TURNS = 4242, (4001, 4002, 4003, 4004), ("077", "022", "002", "027"), 4


class Broken(Exception):
    """Something happened that must not."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


def answer_of(job: Job, timeout: float) -> dict[str, Any]:
    """The next answer of a worker. What else it says, such as a warning, is for people."""
    while not (line := job.line(timeout)).startswith("{"):
        print(f"  {line}", file=sys.stderr)
    answer: dict[str, Any] = json.loads(line)
    return answer


class Client:
    """A worker on a host, which obeys."""

    def __init__(self, host: Host, url: str, become: str = "") -> None:
        env = {"BECOME": become} if become else {}
        self._job = host.start(sys.executable, str(HERE / "worker.py"), url, env=env)

    def tell(self, do: str, **order: Any) -> None:
        self._job.tell(json.dumps({"do": do, **order}))

    def hear(self, timeout: float = 180.0) -> dict[str, Any]:
        return answer_of(self._job, timeout)

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        self.tell(do, **order)
        return self.hear()


def place(lab: Lab, version: str, story: str) -> str:
    """A fresh folder on the shared disk; made on the server, so that no client has seen it."""
    path = f"v{version}/{story}"
    lab.files.run("mkdir", "-p", f"{EXPORT}/{path}")
    return f"{SHARED}/{path}"


def laws(lab: Lab, version: str) -> str:
    """The laws of every engine, with the directory of the file engine on NFS; what failed is tried once more, alone."""
    tests = [f"tests/laws/test_{law}_laws.py" for law in LAWS]
    base = place(lab, version, "laws")
    code, said = _pytest(lab, *tests, "-k", f"file- and not {' and not '.join(UNFIT)}", f"--basetemp={base}/all")
    count = re.findall(r"(\d+) passed", said)
    must(count, said[-600:])
    (lab.folder / f"laws-{version}.log").write_text(said, encoding="utf-8")
    failed = re.findall(r"^FAILED (\S+)", said, re.MULTILINE)
    must(code == 0 or failed, said[-600:])
    for number, test in enumerate(failed):
        code, said = _pytest(lab, test, f"--basetemp={base}/again{number}")
        must(code == 0, f"{test}: {said[-1500:]}")
    again = [test.rpartition("::")[2] for test in failed]
    return f"{int(count[-1]) + len(failed)} laws hold" + (f", at the second try: {', '.join(again)}" if failed else "")


def _pytest(lab: Lab, *words: str) -> tuple[int, str]:
    plain = ("-p", "no:cacheprovider", "-q", "-o", "timeout=600")
    job = lab.ann.start(sys.executable, "-m", "pytest", *words, *plain, cwd=str(ROOT))
    return job.finish(1800)


def exclusion(lab: Lab, version: str) -> str:
    """Many on two hosts want one lease, and some die holding it: nobody meets anybody, and no update is lost."""
    folder = place(lab, version, "exclusion")
    url = f"file://{folder}"
    clients = [Client(host, url) for host in lab.clients for _ in range(STEADY)]
    for client in clients:
        client.tell("hammer", folder=folder, times=TURNS)
    worker = str(HERE / "worker.py")
    mortal = [host.start(sys.executable, worker, url, folder, str(DEATHS)) for host in lab.clients]
    told = [each for client in clients for each in _until_done(client.hear)]
    told += [each for job in mortal for each in _until_done(_lines_of(job))]
    errors = [each for each in told if "value" not in each]
    must(not errors, f"something went wrong inside: {errors[:3]}")
    by_value = sorted(told, key=lambda each: each["value"])
    turns = len(lab.clients) * (STEADY * TURNS + DEATHS)
    must([each["value"] for each in by_value] == list(range(1, turns + 1)), "an update was lost")
    fences = [each["fence"] for each in by_value]
    must(fences == sorted(set(fences)), "a fence did not grow")
    return f"{turns} turns of {len(clients) + 2} workers, {len(lab.clients) * DEATHS} died inside: 0 overlaps, 0 lost"


def _lines_of(job: Job) -> Callable[[], dict[str, Any]]:
    return lambda: answer_of(job, 180)


def _until_done(hear: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    while not (each := hear()).get("done"):
        told.append(each)
    return told


def dead_host(lab: Lab, version: str) -> str:
    """The holder's host loses its power: another host goes on after the ttl."""
    url = f"file://{place(lab, version, 'dead-host')}"
    holder, waiter = Client(lab.ann, url), Client(lab.bob, url)
    old = holder.ask("acquire", name="x", ttl=TTL_S)
    must(waiter.ask("acquire", name="x", timeout=0).get("error") == "NotAcquired", "it was free")
    waiter.tell("acquire", name="x", timeout=60)
    time.sleep(2 * TTL_S)  # it lives, and renews: nobody enters
    lab.ann.kill()
    began = time.monotonic()
    new = waiter.hear()
    took = time.monotonic() - began
    lab.ann.boot().mount(version, lab.files)
    must(new.get("fence", 0) > old["fence"], f"no larger fence: {new}")
    must(0 < took < TTL_S + SLACK_S, f"it took {took:.1f} s")
    return f"replaced {took:.1f} s after the power went, ttl {TTL_S:.0f}"


def killed_holder(lab: Lab, version: str) -> str:
    """A process is killed while it holds: its own host knows at once, another one after the ttl."""
    folder = place(lab, version, "killed")
    url, took = f"file://{folder}", []
    for host in (lab.ann, lab.bob):
        heir = Client(host, url)
        heir.ask("acquire", name="warm")
        lab.ann.start(sys.executable, str(HERE / "worker.py"), url, folder, "1").finish(60)
        answer = heir.ask("acquire", name="hammer", timeout=60)
        must("fence" in answer, f"not replaced: {answer}")
        must(answer["seconds"] < TURN_TTL_S + SLACK_S, f"it took {answer['seconds']:.1f} s")
        took.append(answer["seconds"])
        heir.ask("release", name="hammer")
        heir.ask("release", name="warm")
    return f"same host {took[0]:.2f} s, other host {took[1]:.1f} s, ttl {TURN_TTL_S:.0f}"


def cut_off(lab: Lab, version: str) -> str:
    """The holder's host is cut off for longer than its ttl: it is told, and harms nobody when it is back."""
    url = f"file://{place(lab, version, 'cut')}"
    holder, waiter = Client(lab.ann, url), Client(lab.bob, url)
    old = holder.ask("acquire", name="x", ttl=TTL_S)
    lab.ann.cut()
    try:
        new = waiter.ask("acquire", name="x", timeout=60)
    finally:
        lab.ann.join()
    told = holder.ask("check", name="x")
    released = holder.ask("release", name="x")
    must(new.get("fence", 0) > old["fence"], f"no larger fence: {new}")
    must((told.get("error"), released.get("error")) == ("LeaseLost", "LeaseLost"), f"not told: {told}, {released}")
    must("error" not in waiter.ask("check", name="x"), "the successor's lease was harmed")
    return f"replaced after {new['seconds']:.1f} s, ttl {TTL_S:.0f}; the old holder was told"


def wrong_clock(lab: Lab, version: str) -> str:
    """A waiter whose calendar is six minutes ahead steals nothing from a holder that renews."""
    url = f"file://{place(lab, version, 'clock')}"
    holder, waiter = Client(lab.ann, url), Client(lab.bob, url)
    holder.ask("acquire", name="x", ttl=TTL_S)
    lab.bob.run("sh", "-c", "date -s @$(($(date +%s) + 360))")
    try:
        refused = waiter.ask("acquire", name="x", timeout=2.5 * TTL_S)
    finally:
        lab.bob.run("sh", "-c", "date -s @$(($(date +%s) - 360))")
    must(refused.get("error") == "NotAcquired", f"it was stolen: {refused}")
    must("error" not in holder.ask("release", name="x"), "the holder lost it")
    return f"six minutes ahead, {2.5 * TTL_S:.1f} s of trying: nothing stolen"


def remembered_absence(lab: Lab, version: str) -> str:
    """A host that has seen that something is not there builds it no second time when another has built it."""
    store = place(lab, version, "absence")
    url = f"file://{store}"
    first, second = Client(lab.ann, url), Client(lab.bob, url)
    for trial in range(TRIALS):
        for client in (first, second):
            client.ask("look", path=f"{store}/k{trial}")
            client.ask("look", path=f"{store}/k{trial}/.holdfast-built")
        first.tell("build", store=store, key=f"k{trial}")
        must("building" in first.hear(), "the first did not build")
        must(first.hear().get("fresh"), "the first did not publish")
        found = second.ask("build", store=store, key=f"k{trial}")
        must(found.get("fresh") is False, f"built twice: {found}")
    return f"{TRIALS} builds, each found by the other host"


def births(lab: Lab, version: str) -> str:
    """All use a new name at the same instant: whoever is not the first sees what the first has made."""
    url = f"file://{place(lab, version, 'births')}"
    clients = [Client(host, url) for host in lab.clients * 2]
    longest = 0.0
    for number in range(BIRTHS):
        for client in clients:
            client.tell("birth", name=f"n{number}")
        for answer in [client.hear() for client in clients]:
            must("fence" in answer, f"n{number} was not to be had: {answer}")
            longest = max(longest, answer["seconds"])
    must(longest < TURN_TTL_S + SLACK_S, f"one waited {longest:.1f} s")
    return f"{BIRTHS} new names, each wanted by {len(clients)} at once: the longest wait was {longest:.1f} s"


def users(lab: Lab, version: str) -> str:
    """Users of one group, on two hosts, whose own groups and umasks are others: one lease, and one build for all."""
    for trial in range(TRIALS):
        folder = place(lab, version, f"users{trial}")
        mode = "2770" if trial % 2 else "0770"  # with and without the bit that hands the group on
        at = folder.replace(SHARED, EXPORT)
        lab.files.run("sh", "-c", f"chgrp {GROUP} {at} && chmod {mode} {at}")
        who = [
            (host, f"{user}:{GROUP}:{umask}") for host, user, umask in zip(lab.clients * 2, USERS, UMASKS, strict=True)
        ]
        clients = [Client(host, f"file://{folder}", become) for host, become in who]
        for client in clients:
            client.tell("hammer", folder=folder, times=USER_TURNS)
        told = [each for client in clients for each in _until_done(client.hear)]
        errors = [each for each in told if "value" not in each]
        must(not errors, f"something went wrong inside: {errors[:3]}")
        values = sorted(each["value"] for each in told)
        must(values == list(range(1, len(clients) * USER_TURNS + 1)), "an update was lost")
        for client in clients:
            client.tell("build", store=folder, key="k")
        built = [_until_built(client) for client in clients]
        must([each.get("fresh") for each in built].count(True) == 1, f"not built once: {built}")
        must(all(each.get("read") == ["first", "second"] for each in built), f"not read by all: {built}")
        _opened_late(lab, folder, clients[1])
    turns = TRIALS * len(USERS) * USER_TURNS
    return f"{TRIALS} directories of {len(USERS)} users of a group: {turns} turns, 0 lost; {TRIALS} builds, read by all"


def _opened_late(lab: Lab, folder: str, user: Client) -> None:
    """One who was forbidden to pass a folder does not believe that for long: its maker has opened it by now."""
    lab.ann.run("sh", "-c", f"mkdir -m 0700 {folder}/late && chgrp {GROUP} {folder}/late")
    user.tell("build", store=f"{folder}/late", key="k")
    time.sleep(1)  # it was refused by now
    lab.ann.run("chmod", "2770", f"{folder}/late")
    built = _until_built(user)
    must(built.get("fresh"), f"it was still forbidden: {built}")


def _until_built(client: Client) -> dict[str, Any]:
    """What came of it; who builds says so first."""
    while "building" in (each := client.hear()):
        pass
    return each


def killed_builder(lab: Lab, version: str) -> str:
    """A builder is killed half-way: the other host sees nothing of it, finishes, and clears away what was left."""
    store = place(lab, version, "killed-builder")
    url = f"file://{store}"
    for trial in range(TRIALS):
        key = f"k{trial}"
        builder, heir = Client(lab.ann, url), Client(lab.bob, url)
        builder.tell("build", store=store, key=key, seconds=60)
        pid = builder.hear().get("building")
        must(pid, "nothing was built")
        must(not heir.ask("look", path=f"{store}/{key}")["there"], "half of it is there")
        lab.ann.run("kill", "-KILL", str(pid))
        heir.tell("build", store=store, key=key)
        must("building" in heir.hear(), "the heir did not build")
        built = heir.hear()
        must(built.get("fresh"), f"the heir did not publish: {built}")
        must(built["files"] == [".holdfast-built", "first", "second"], f"not whole: {built}")
    left = lab.files.run("ls", "-A", f"{EXPORT}/v{version}/killed-builder/.holdfast-staging").split()
    must(left == [], f"left behind: {left}")
    return f"{TRIALS} builders killed, {TRIALS} finished by the other host, nothing left"


def installs(lab: Lab, version: str) -> str:
    """Six workers on two hosts want the same three packages, at the same time: one run of npm for each package."""
    sys.path.insert(0, str(ROOT / "tests" / "npm"))
    from registry import Registry  # type: ignore[import-not-found] # noqa: PLC0415 - the one of the tests

    registry = Registry(HUB)
    shim = lab.folder / "tools" / "npm"
    shim.parent.mkdir(exist_ok=True)
    noted = 'if [ "$1" = install ]; then\n  for last; do :; done\n  echo "$last" > "$RUNS/$ADDRESS.$$"\nfi'
    shim.write_text(f'#!/bin/sh\n{noted}\nexec {shutil.which("npm")} "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    env = {
        "PATH": f"{shim.parent}:/usr/bin:/bin",
        "npm_config_registry": registry.url,
        "npm_config_cache": "/tmp/npm",
        "npm_config_update_notifier": "false",
    }
    try:
        for trial in range(TRIALS):
            _one_install(lab, version, trial, env)
    finally:
        registry.close()
    return f"{TRIALS} trials of 6 workers and {len(PACKAGES)} packages: {TRIALS * len(PACKAGES)} runs of npm, all whole"


def _one_install(lab: Lab, version: str, trial: int, env: dict[str, str]) -> None:
    folder = place(lab, version, f"install{trial}")
    at = folder.replace(SHARED, EXPORT)
    lab.files.run("mkdir", f"{at}/repo", f"{at}/runs")
    for host in lab.clients:  # both remember that there is nothing
        host.run("sh", "-c", f"ls {folder}/repo/node_modules/alpha_1.0.0 {folder}/repo/package.json; true")
    command = (sys.executable, "-m", "holdfast", "install", "--json", "--repo-dir", f"{folder}/repo", *PACKAGES)
    noted = {**env, "RUNS": f"{folder}/runs"}
    jobs = [host.start(*command, env=noted, cwd=str(ROOT)) for host in lab.clients for _ in range(3)]
    for job in jobs:
        code, said = job.finish(600)
        must(code == 0, f"an install failed: {said[-600:]}")
    runs = sorted(lab.files.run("sh", "-c", f"cat {at}/runs/*").split())
    must(runs == sorted(f"{name}_1.0.0@npm:{name}@1.0.0" for name in ("alpha", "beta", "gamma")), f"npm ran: {runs}")
    aliases = [f"{each.replace('@', '_')}" for each in PACKAGES]
    script = "for (const alias of process.argv.slice(1)) console.log((await import(alias)).default)"
    for host in lab.clients:
        said = host.run("node", "--input-type=module", "-e", script, *aliases, cwd=f"{folder}/repo")
        must(said.split() == list(PACKAGES), f"{host.name} imported {said}")
    manifest = json.loads(lab.files.run("cat", f"{at}/repo/package.json"))
    must(sorted(manifest["dependencies"]) == sorted(aliases), f"the manifest has {manifest['dependencies']}")


STORIES: tuple[Callable[[Lab, str], str], ...] = (
    exclusion,
    births,
    killed_holder,
    dead_host,
    cut_off,
    wrong_clock,
    remembered_absence,
    killed_builder,
    users,
    installs,
    laws,
)
