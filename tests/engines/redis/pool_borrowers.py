"""Borrowers in separate processes, for test_pools.py."""

import random
import threading
import time

import hiredis

import holdfast
from holdfast import LeaseLost, NotAcquired, config
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.resp import packed
from holdfast.testing import read_line, ready, send_line


def keep(url, count):
    """Borrow once on each of several threads, and keep the items until the end."""
    with holdfast.connect(url) as client:
        pool, outcomes = client.pool("channels", on_death=0), []

        def borrow():
            try:
                outcomes.append(pool.borrow(timeout=0))
            except NotAcquired as error:
                outcomes.append(error.reason)

        ready()
        read_line(30)
        threads = [threading.Thread(target=borrow) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            send_line(outcome if isinstance(outcome, str) else f"lent\t{outcome.name}\t{outcome.fence}")
        read_line(60)
        for outcome in outcomes:
            if not isinstance(outcome, str):
                outcome.release()


def work(url, seed, seconds):
    """Borrow and return on three threads with random holds, and count each hold in keys of the server."""
    twice, uses = [], [0, 0, 0]
    until = time.monotonic() + seconds
    with holdfast.connect(url) as client:
        pool = client.pool("channels", on_death=0)

        def borrow(number):
            dice, link = random.Random((seed, number).__hash__()), RedisConnection(connector_of(config.settings(url)))
            while time.monotonic() < until:
                with pool.borrow(timeout=30) as item:
                    key = f"inside:{item.name}"
                    (inside,) = link.exchange(packed("INCR", key), 1, 5.0)
                    if isinstance(inside, hiredis.ReplyError) or inside != 1:
                        twice.append(item.name)
                    time.sleep(dice.random() * 0.004)
                    link.exchange(packed("DECR", key), 1, 5.0)
                    uses[number] += 1
                    if dice.random() < 0.1:
                        item.cool(0.01)
            link.close()

        threads = [threading.Thread(target=borrow, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    send_line(f"{sum(uses)} {len(twice)} {min(uses)}")


def hold(url, ttl):
    """Borrow, print the fence, and hold the item until it is lost."""
    with holdfast.connect(url) as client:
        try:
            with client.pool("channels", ttl=ttl, on_death=0).borrow() as item:
                ready()
                send_line(str(item.fence))
                item.lost.wait(60)
        except LeaseLost as lost:
            send_line(f"lost {lost.reason}")
