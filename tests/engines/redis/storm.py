"""A scenario in a separate process with its own network: many leases and waiters, and the primary fails.

    python storm.py sentinel valkey partition 1000 50

The servers live in homes that can be cut from each other, and so do the clients, which are another process. The story
itself reaches everybody. It prints what happened as one line of JSON; what must not happen raises.
"""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from leftovers import look_after

import holdfast
from holdfast.testing import WorkerProcesses, eventually, read_line, ready, send_line
from holdfast.testing.servers import LOOPBACK
from tests.support.clusters import Cluster
from tests.support.networks import Network
from tests.support.sentinels import Sentinels

GROUPS = {"sentinel": Sentinels, "cluster": Cluster}
TTL_S = 30
QUEUES = 10
CLIENTS = 5
# The old primary is back by then, and believes itself to be what it was.
AFTERWARDS_S = 2


class Crowd:
    """The clients: holders, waiters, and one rival that tries to acquire all the time."""

    def __init__(self, url, leases, waiters):
        self.names = [f"storm/{number}" for number in range(leases)]
        self.lost, self.intrusions, self.refusals, self.troubles = [], [], 0, 0
        self.fences = {name: [] for name in self.names}
        self.holder = holdfast.connect(url, label="holder", observer=self._heard)
        self.clients = [holdfast.connect(url, label=f"waiters {number}") for number in range(CLIENTS)]
        self.intruder = holdfast.connect(url, label="intruder")
        self.held = [self.holder.lock(name, ttl=TTL_S).acquire(timeout=20) for name in self.names]
        self.waiting = [threading.Thread(target=self._wait, args=(number,)) for number in range(waiters)]
        self._over = threading.Event()
        self._trying = threading.Thread(target=self._try)

    def _heard(self, event):
        if event.kind == "lost":
            self.lost.append(event.name)

    def _wait(self, number):
        name = self.names[number % QUEUES]
        lease = self.clients[number % CLIENTS].lock(name, ttl=TTL_S).acquire(timeout=100)
        self.fences[name].append(lease.fence)
        lease.release()

    def _try(self):
        """Check that a held lease is refused, or gets no answer, at every moment."""
        number = 0
        while not self._over.is_set():
            name = self.names[number % len(self.names)]
            number += 7
            try:
                lease = self.intruder.lock(name, ttl=TTL_S).try_acquire()
            except holdfast.Unavailable:
                self.troubles += 1
                continue
            if lease is None:
                self.refusals += 1
            else:
                self.intrusions.append(name)
                lease.release()

    def begin(self):
        for each in self.waiting:
            each.start()
        for name in self.names[:QUEUES]:
            wanted = len(range(self.names.index(name), len(self.waiting), QUEUES))
            eventually(lambda n=name, w=wanted: len(self.holder.show(n).waiters) == w, 30, f"{wanted} to wait")
        self._trying.start()

    def end(self):
        self._over.set()
        self._trying.join()
        for lease in self.held:
            lease.check()
            assert self.holder.show(lease.name).fence == lease.fence
            self.fences[lease.name].insert(0, lease.fence)
            lease.release()
        for each in self.waiting:
            each.join(100)
        served = sum(len(fences) - 1 for fences in self.fences.values())
        wrong = [name for name, fences in self.fences.items() if fences != sorted(set(fences))]
        for client in (self.holder, self.intruder, *self.clients):
            assert client.close() == ()
        return {
            "lost": len(self.lost), "intrusions": len(self.intrusions), "served": served, "wrong fences": len(wrong),
            "refusals": self.refusals, "troubles": self.troubles,
        }  # fmt: skip


def open_here():
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
    return len(threads), len(os.listdir("/proc/self/fd"))


def crowd(url, leases, waiters):
    """Run the process of the clients."""
    holdfast.connect("memory://").close()
    before = open_here()
    clients = Crowd(url, leases, waiters)
    clients.begin()
    ready()
    read_line(None)
    told = clients.end()
    eventually(lambda: open_here() <= before, 20, f"threads and descriptors to end: {before}, {open_here()}")
    send_line(json.dumps(told))


@contextmanager
def struck(fault, server, network, homes):
    """Remove the primary in one of several ways, and bring it back."""
    if fault == "partition":
        network.cut([homes[server]], [home for home in homes.values() if home is not homes[server]])
    else:
        getattr(server, fault)()
    yield
    if fault == "partition":
        network.heal()
    elif fault == "freeze":
        server.thaw()
    else:
        server.start()


def play(network, sort, kind, fault, leases, waiters):
    places = [network.home(f"s{number}") if network else LOOPBACK for number in range(6)]
    clients = network.home("clients") if network else LOOPBACK
    with GROUPS[sort](kind, homes=places) as group, WorkerProcesses() as workers:
        homes = dict(zip([*group.servers, *getattr(group, "sentinels", ())], places, strict=True))
        homes["clients"] = clients
        worker = workers.start(f"{__file__}:crowd", home=clients, url=group.url, leases=leases, waiters=waiters)
        worker.wait_ready(60)
        group.wait_replicated()
        primary = group.server_of("storm/0")
        began = time.monotonic()
        with struck(fault, primary, network, homes):
            group.wait_replaced(primary)
            replaced_s = time.monotonic() - began
        time.sleep(AFTERWARDS_S)
        group.heal()
        worker.send_line("end")
        told = json.loads(worker.read_line(150))
        assert worker.wait(20) == 0, worker.output()
        for server in group.servers:
            look_after(server)
    return {"sort": sort, "fault": fault, "replaced after": round(replaced_s, 1), **told}


def main():
    sort, kind, fault, leases, waiters = sys.argv[1:]
    if fault != "partition" and os.environ.get("STORM_NETWORK") == "none":
        print(json.dumps(play(None, sort, kind, fault, int(leases), int(waiters))))
        return
    with Network() as network:
        print(json.dumps(play(network, sort, kind, fault, int(leases), int(waiters))))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
