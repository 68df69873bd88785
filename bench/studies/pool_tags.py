"""The cost of a new tag: the first borrow with a tag reads the whole pool once, later ones do not.

The study measures the first and the second borrow of several tags, in milliseconds: the median, and the worst. On Redis
the server answers no other client for about as long as the first borrow takes.

    python bench/studies/pool_tags.py [items]...
"""

import statistics
import sys
import tempfile
import time

import holdfast
from holdfast.testing.servers import Server

TAGS = 5


def borrow_ms(pool, tag):
    began = time.perf_counter()
    item = pool.borrow(timeout=30, tag=tag, share=0.5)
    seconds = time.perf_counter() - began
    item.release()
    return seconds * 1000


def measured(url, items):
    with holdfast.connect(url) as hf:
        pool = hf.pool("tags", on_death=0)
        pool.set_items(f"item {number}" for number in range(items))
        first, again = ([borrow_ms(pool, f"tag {number}") for number in range(TAGS)] for _ in range(2))
    return statistics.median(first), max(first), statistics.median(again)


def main():
    sizes = [int(argument) for argument in sys.argv[1:]] or [2_000, 100_000]
    with tempfile.TemporaryDirectory() as folder:
        server = Server("valkey").start()
        for url in ("memory://", f"sqlite://{folder}/tags.db", server.url):
            for items in sizes:
                first, worst, again = measured(url, items)
                engine = url.partition(":")[0]
                print(f"{engine}, {items} items: first {first:.1f} ms (worst {worst:.1f}), then {again:.2f} ms")
        server.close()


if __name__ == "__main__":
    main()
