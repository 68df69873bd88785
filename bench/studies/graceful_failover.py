"""The cost of a graceful failover: leases held before it, and leases granted during it, that are lost.

    python bench/studies/graceful_failover.py [sentinel | cluster] [confirm] [min-replicas] [failovers]

One client holds 30 leases; another acquires one after the other until the new server answers. Then both release all
leases: a lease that cannot be released was lost.
"""

import logging
import sys
import threading
import time

import holdfast
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels

GROUPS = {"sentinel": Sentinels, "cluster": Cluster}
HELD = 30
TTL_S = 30


def taking(hf, prefix, confirm, over, taken):
    """Acquire one lease after the other, each with its own name."""
    while not over.is_set():
        try:
            taken.append(hf.lock(f"{prefix}/{len(taken)}", ttl=TTL_S, confirm=confirm).acquire(timeout=10))
        except holdfast.HoldfastError:
            continue
        time.sleep(0.005)


def lost(leases):
    """Release all leases; return how many were lost."""
    count = 0
    for lease in leases:
        try:
            lease.release()
        except holdfast.LeaseLost:
            count += 1
    return count


def one_failover(group, number, confirm):
    with holdfast.connect(group.url) as holder, holdfast.connect(group.url) as taker:
        locks = [holder.lock(f"held/{number}/{at}", ttl=TTL_S, confirm=confirm) for at in range(HELD)]
        held = [lock.acquire(timeout=10) for lock in locks]
        over, taken = threading.Event(), []
        beside = threading.Thread(target=taking, args=(taker, f"taken/{number}", confirm, over, taken))
        beside.start()
        time.sleep(0.3)
        group.failover(group.server_of(held[0].name))
        time.sleep(0.5)
        over.set()
        beside.join()
        group.heal()
        time.sleep(1)
        return len(held), lost(held), len(taken), lost(taken)


def main():
    sorts = [word for word in sys.argv[1:] if word in GROUPS] or list(GROUPS)
    failovers = next((int(word) for word in sys.argv[1:] if word.isdigit()), 5)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    confirm = "replicas" if "confirm" in sys.argv else None
    settings = ("--min-replicas-to-write", "1") if "min-replicas" in sys.argv else ()
    for sort in sorts:
        with GROUPS[sort]("valkey", arguments=settings) as group:
            counts = [one_failover(group, number, confirm) for number in range(failovers)]
        held, held_lost, taken, taken_lost = map(sum, zip(*counts, strict=True))
        print(f"{sort}: {held_lost} of {held} held before, {taken_lost} of {taken} granted meanwhile were lost")


if __name__ == "__main__":
    main()
