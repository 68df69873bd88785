"""What a new tag costs: the first borrow of a share looks through the pool once, every later one does not.

The first borrow of each of some tags, and the second one of the same, in milliseconds: the median, and the worst. On
Redis the server answers nobody else for about as long as the first one takes.

    python bench/tags.py [items]...
"""

import statistics
import sys
import tempfile
import time

import holdfast
from holdfast.testing.servers import Server

TAGS = 5


def taken_ms(pool, tag):
    began = time.perf_counter()
    item = pool.borrow(timeout=30, tag=tag, share=0.5)
    took = time.perf_counter() - began
    item.release()
    return took * 1000


def measured(url, items):
    with holdfast.connect(url) as hf:
        pool = hf.pool("tags", on_death=0)
        pool.set_items(f"item {number}" for number in range(items))
        first, again = ([taken_ms(pool, f"tag {number}") for number in range(TAGS)] for _ in range(2))
    return statistics.median(first), max(first), statistics.median(again)


def main():
    sizes = [int(word) for word in sys.argv[1:]] or [2_000, 100_000]
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
