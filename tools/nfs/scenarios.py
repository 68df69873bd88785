"""The scenarios on real NFS. Each returns a line about its observations, or raises `Broken`."""

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
# A host of the lab is slow, and its waiters check every half second: the bounds are orders of magnitude.
SLACK_S = 8.0
STEADY, TURNS, DEATHS = 3, 10, 3
TRIALS = 5
BIRTHS = 40
PACKAGES = ("alpha@1.0.0", "beta@1.0.0", "gamma@1.0.0")
LAWS = ("exclusion", "loss", "lock", "resend", "closing", "leader", "build")
# The first needs six threads in twenty seconds, too fast for polling waiters (`exclusion` replaces it here);
# the second needs SQLite on NFS, which the engine refuses.
UNFIT = ("never_two_holders", "another_engine_guards")
EXPORT = "/run/export"
GROUP, USERS, UMASKS, USER_TURNS = 4242, (4001, 4002, 4003, 4004), ("077", "022", "002", "027"), 4


class Broken(Exception):
    """A forbidden event happened."""


def must(holds: object, violation: str) -> None:
    """Raise `Broken` if a condition does not hold."""
    if not holds:
        raise Broken(violation)


def answer_of(job: Job, timeout: float) -> dict[str, Any]:
    """Return the next answer of a worker. Print other output, such as a warning, for people."""
    while not (line := job.line(timeout)).startswith("{"):
        print(f"  {line}", file=sys.stderr)
    answer: dict[str, Any] = json.loads(line)
    return answer


class Client:
    """A worker on a host."""

    def __init__(self, host: Host, url: str, become: str = "") -> None:
        env = {"BECOME": become} if become else {}
        self._job = host.start(sys.executable, str(HERE / "worker.py"), url, env=env)

    def send(self, do: str, **order: Any) -> None:
        self._job.send(json.dumps({"do": do, **order}))

    def receive(self, timeout: float = 180.0) -> dict[str, Any]:
        return answer_of(self._job, timeout)

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        self.send(do, **order)
        return self.receive()


def new_folder(lab: Lab, version: str, scenario: str) -> str:
    """Create a folder on the shared disk, on the server, so that no client has cached it."""
    path = f"v{version}/{scenario}"
    lab.files.run("mkdir", "-p", f"{EXPORT}/{path}")
    return f"{SHARED}/{path}"


def laws(lab: Lab, version: str) -> str:
    """Run the laws with the file engine on NFS. Run a failed law once more, alone."""
    tests = [f"tests/laws/test_{law}_laws.py" for law in LAWS]
    base = new_folder(lab, version, "laws")
    code, output = _pytest(lab, *tests, "-k", f"file- and not {' and not '.join(UNFIT)}", f"--basetemp={base}/all")
    count = re.findall(r"(\d+) passed", output)
    must(count, output[-600:])
    (lab.folder / f"laws-{version}.log").write_text(output, encoding="utf-8")
    failed = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
    must(code == 0 or failed, output[-600:])
    for number, test in enumerate(failed):
        code, output = _pytest(lab, test, f"--basetemp={base}/again{number}")
        must(code == 0, f"{test}: {output[-1500:]}")
    again = [test.rpartition("::")[2] for test in failed]
    return f"{int(count[-1]) + len(failed)} laws hold" + (f", at the second try: {', '.join(again)}" if failed else "")


def _pytest(lab: Lab, *words: str) -> tuple[int, str]:
    plain = ("-p", "no:cacheprovider", "-q", "-o", "timeout=600")
    job = lab.ann.start(sys.executable, "-m", "pytest", *words, *plain, cwd=str(ROOT))
    return job.finish(1800)


def exclusion(lab: Lab, version: str) -> str:
    """Many workers on two hosts want one lease, and some die holding it: no two overlap, and no update is lost."""
    folder = new_folder(lab, version, "exclusion")
    url = f"file://{folder}"
    clients = [Client(host, url) for host in lab.clients for _ in range(STEADY)]
    for client in clients:
        client.send("hammer", folder=folder, times=TURNS)
    worker = str(HERE / "worker.py")
    mortal = [host.start(sys.executable, worker, url, folder, str(DEATHS)) for host in lab.clients]
    answers = [each for client in clients for each in _until_done(client.receive)]
    answers += [each for job in mortal for each in _until_done(_lines_of(job))]
    errors = [each for each in answers if "value" not in each]
    must(not errors, f"an error happened inside: {errors[:3]}")
    by_value = sorted(answers, key=lambda each: each["value"])
    turns = len(lab.clients) * (STEADY * TURNS + DEATHS)
    must([each["value"] for each in by_value] == list(range(1, turns + 1)), "an update was lost")
    fences = [each["fence"] for each in by_value]
    must(fences == sorted(set(fences)), "a fence did not grow")
    return f"{turns} turns of {len(clients) + 2} workers, {len(lab.clients) * DEATHS} died inside: 0 overlaps, 0 lost"


def _lines_of(job: Job) -> Callable[[], dict[str, Any]]:
    return lambda: answer_of(job, 180)


def _until_done(receive: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    while not (each := receive()).get("done"):
        answers.append(each)
    return answers


def dead_host(lab: Lab, version: str) -> str:
    """The holder's host loses its power: another host continues after the ttl."""
    url = f"file://{new_folder(lab, version, 'dead-host')}"
    holder, waiter = Client(lab.ann, url), Client(lab.bob, url)
    old = holder.ask("acquire", name="x", ttl=TTL_S)
    must(waiter.ask("acquire", name="x", timeout=0).get("error") == "NotAcquired", "it was free")
    waiter.send("acquire", name="x", timeout=60)
    time.sleep(2 * TTL_S)  # it is alive and renews: no other client enters
    lab.ann.kill()
    began = time.monotonic()
    new = waiter.receive()
    took = time.monotonic() - began
    lab.ann.boot().mount(version, lab.files)
    must(new.get("fence", 0) > old["fence"], f"no larger fence: {new}")
    must(0 < took < TTL_S + SLACK_S, f"it took {took:.1f} s")
    return f"replaced {took:.1f} s after the power went, ttl {TTL_S:.0f}"


def killed_holder(lab: Lab, version: str) -> str:
    """A holder is killed: its own host replaces it at once, another host after the ttl."""
    folder = new_folder(lab, version, "killed")
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
    """The holder's host is cut off for longer than its ttl: it learns of the loss, and does no harm afterwards."""
    url = f"file://{new_folder(lab, version, 'cut')}"
    holder, waiter = Client(lab.ann, url), Client(lab.bob, url)
    old = holder.ask("acquire", name="x", ttl=TTL_S)
    lab.ann.cut()
    try:
        new = waiter.ask("acquire", name="x", timeout=60)
    finally:
        lab.ann.join()
    checked = holder.ask("check", name="x")
    released = holder.ask("release", name="x")
    must(new.get("fence", 0) > old["fence"], f"no larger fence: {new}")
    must(
        (checked.get("error"), released.get("error")) == ("LeaseLost", "LeaseLost"),
        f"the loss was not reported: {checked}, {released}",
    )
    must("error" not in waiter.ask("check", name="x"), "the successor's lease was harmed")
    return f"replaced after {new['seconds']:.1f} s, ttl {TTL_S:.0f}; the old holder learned of it"


def wrong_clock(lab: Lab, version: str) -> str:
    """A waiter with a clock six minutes ahead steals nothing from a live holder."""
    url = f"file://{new_folder(lab, version, 'clock')}"
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
    """A host that has cached the absence of a build does not repeat it after another host has built it."""
    store = new_folder(lab, version, "absence")
    url = f"file://{store}"
    first, second = Client(lab.ann, url), Client(lab.bob, url)
    for trial in range(TRIALS):
        for client in (first, second):
            client.ask("look", path=f"{store}/k{trial}")
            client.ask("look", path=f"{store}/k{trial}/.holdfast-built")
        first.send("build", store=store, key=f"k{trial}")
        must("building" in first.receive(), "the first did not build")
        must(first.receive().get("fresh"), "the first did not publish")
        found = second.ask("build", store=store, key=f"k{trial}")
        must(found.get("fresh") is False, f"built twice: {found}")
    return f"{TRIALS} builds, each found by the other host"


def births(lab: Lab, version: str) -> str:
    """All clients use a new name at the same instant: the later ones see the directory of the first."""
    url = f"file://{new_folder(lab, version, 'births')}"
    clients = [Client(host, url) for host in lab.clients * 2]
    longest = 0.0
    for number in range(BIRTHS):
        for client in clients:
            client.send("birth", name=f"n{number}")
        for answer in [client.receive() for client in clients]:
            must("fence" in answer, f"n{number} could not be acquired: {answer}")
            longest = max(longest, answer["seconds"])
    must(longest < TURN_TTL_S + SLACK_S, f"a client waited {longest:.1f} s")
    return f"{BIRTHS} new names, each wanted by {len(clients)} at once: the longest wait was {longest:.1f} s"


def users(lab: Lab, version: str) -> str:
    """Users of one group, on two hosts, with different own groups and umasks: one lease, and one build for all."""
    for trial in range(TRIALS):
        folder = new_folder(lab, version, f"users{trial}")
        mode = "2770" if trial % 2 else "0770"  # with and without the set-group-id bit
        at = folder.replace(SHARED, EXPORT)
        lab.files.run("sh", "-c", f"chgrp {GROUP} {at} && chmod {mode} {at}")
        who = [
            (host, f"{user}:{GROUP}:{umask}") for host, user, umask in zip(lab.clients * 2, USERS, UMASKS, strict=True)
        ]
        clients = [Client(host, f"file://{folder}", become) for host, become in who]
        for client in clients:
            client.send("hammer", folder=folder, times=USER_TURNS)
        answers = [each for client in clients for each in _until_done(client.receive)]
        errors = [each for each in answers if "value" not in each]
        must(not errors, f"an error happened inside: {errors[:3]}")
        values = sorted(each["value"] for each in answers)
        must(values == list(range(1, len(clients) * USER_TURNS + 1)), "an update was lost")
        for client in clients:
            client.send("build", store=folder, key="k")
        built = [_until_built(client) for client in clients]
        must([each.get("fresh") for each in built].count(True) == 1, f"not built once: {built}")
        must(all(each.get("read") == ["first", "second"] for each in built), f"not read by all: {built}")
        _opened_late(lab, folder, clients[1])
    turns = TRIALS * len(USERS) * USER_TURNS
    return f"{TRIALS} directories of {len(USERS)} users of a group: {turns} turns, 0 lost; {TRIALS} builds, read by all"


def _opened_late(lab: Lab, folder: str, user: Client) -> None:
    """A user that could not enter a folder succeeds soon after its creator has opened it."""
    lab.ann.run("sh", "-c", f"mkdir -m 0700 {folder}/late && chgrp {GROUP} {folder}/late")
    user.send("build", store=f"{folder}/late", key="k")
    time.sleep(1)  # the first try has been refused
    lab.ann.run("chmod", "2770", f"{folder}/late")
    built = _until_built(user)
    must(built.get("fresh"), f"it was still forbidden: {built}")


def _until_built(client: Client) -> dict[str, Any]:
    """Return the result of a build. A builder first reports that it builds."""
    while "building" in (each := client.receive()):
        pass
    return each


def killed_builder(lab: Lab, version: str) -> str:
    """A builder is killed half-way: the other host sees nothing of it, finishes, and removes its leftovers."""
    store = new_folder(lab, version, "killed-builder")
    url = f"file://{store}"
    for trial in range(TRIALS):
        key = f"k{trial}"
        builder, heir = Client(lab.ann, url), Client(lab.bob, url)
        builder.send("build", store=store, key=key, seconds=60)
        pid = builder.receive().get("building")
        must(pid, "nothing was built")
        must(not heir.ask("look", path=f"{store}/{key}")["there"], "half of the build is visible")
        lab.ann.run("kill", "-KILL", str(pid))
        heir.send("build", store=store, key=key)
        must("building" in heir.receive(), "the heir did not build")
        built = heir.receive()
        must(built.get("fresh"), f"the heir did not publish: {built}")
        must(built["files"] == [".holdfast-built", "first", "second"], f"incomplete: {built}")
    left = lab.files.run("ls", "-A", f"{EXPORT}/v{version}/killed-builder/.holdfast-staging").split()
    must(left == [], f"left behind: {left}")
    return f"{TRIALS} builders killed, {TRIALS} finished by the other host, nothing left"


def installs(lab: Lab, version: str) -> str:
    """Six workers on two hosts want the same three packages at once: npm runs once for each package."""
    sys.path.insert(0, str(ROOT / "tests" / "npm"))
    from registry import Registry  # type: ignore[import-not-found] # noqa: PLC0415 - the registry of the tests

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
    return (
        f"{TRIALS} trials of 6 workers and {len(PACKAGES)} packages: {TRIALS * len(PACKAGES)} runs of npm, all complete"
    )


def _one_install(lab: Lab, version: str, trial: int, env: dict[str, str]) -> None:
    folder = new_folder(lab, version, f"install{trial}")
    at = folder.replace(SHARED, EXPORT)
    lab.files.run("mkdir", f"{at}/repo", f"{at}/runs")
    for host in lab.clients:  # both cache the absence
        host.run("sh", "-c", f"ls {folder}/repo/node_modules/alpha_1.0.0 {folder}/repo/package.json; true")
    command = (sys.executable, "-m", "holdfast", "install", "--json", "--repo-dir", f"{folder}/repo", *PACKAGES)
    noted = {**env, "RUNS": f"{folder}/runs"}
    jobs = [host.start(*command, env=noted, cwd=str(ROOT)) for host in lab.clients for _ in range(3)]
    for job in jobs:
        code, output = job.finish(600)
        must(code == 0, f"an install failed: {output[-600:]}")
    runs = sorted(lab.files.run("sh", "-c", f"cat {at}/runs/*").split())
    must(runs == sorted(f"{name}_1.0.0@npm:{name}@1.0.0" for name in ("alpha", "beta", "gamma")), f"npm ran: {runs}")
    aliases = [f"{each.replace('@', '_')}" for each in PACKAGES]
    script = "for (const alias of process.argv.slice(1)) console.log((await import(alias)).default)"
    for host in lab.clients:
        output = host.run("node", "--input-type=module", "-e", script, *aliases, cwd=f"{folder}/repo")
        must(output.split() == list(PACKAGES), f"{host.name} imported {output}")
    manifest = json.loads(lab.files.run("cat", f"{at}/repo/package.json"))
    must(sorted(manifest["dependencies"]) == sorted(aliases), f"the manifest has {manifest['dependencies']}")


SCENARIOS: tuple[Callable[[Lab, str], str], ...] = (
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
