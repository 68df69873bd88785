"""A process without a free descriptor: it makes every call, frees the descriptors, and makes every call again.

It prints one JSON object: the errors of the first round and of the second one, and what it left open.
"""

import asyncio
import json
import os
import resource
import sys
import threading
from contextlib import contextmanager

import holdfast
from holdfast import HoldfastError, aio


@contextmanager
def no_descriptors():
    """Take every descriptor that this process may have."""
    taken = []
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def opened():
    return len(os.listdir("/proc/self/fd"))


async def round_of(calls):
    """Make the calls, and return the errors by name: the reason of `Unavailable`, or the type of any other error."""
    errors = {}
    for name, call in calls.items():
        try:
            result = call()
            if asyncio.iscoroutine(result):
                await result
        except holdfast.Unavailable as error:
            errors[name] = str(error.reason)
        except HoldfastError as error:
            errors[name] = type(error).__name__
        except Exception as error:
            errors[name] = f"raw {error!r}"
    return errors


async def main(url, face):
    async def settled(value):
        return await value if asyncio.iscoroutine(value) else value

    connect = holdfast.connect if face == "blocking" else aio.connect
    hf = await settled(connect(url))
    kept = await settled(hf.lock("kept", ttl=30).acquire())
    await settled(hf.held())

    async def pair():
        lease = await settled(hf.lock("x").acquire(timeout=0))
        await settled(lease.release())

    async def wait():
        await settled(hf.lock("kept").acquire(timeout=0.3))

    async def reconnect():
        other = await settled(connect(url))
        try:
            await settled(other.show("x"))
        finally:
            await settled(other.close(0))

    calls = {
        "pair": pair,
        "wait": wait,
        "connect": reconnect,
        "show": lambda: hf.show("x"),
        "held": hf.held,
        "promise": hf.promise,
        "publish": lambda: hf.queue("q").publish(1),
    }
    with no_descriptors():
        without = await round_of(calls)
    again = await round_of(calls)
    after = []
    for _ in range(6):
        with no_descriptors():
            await round_of(calls)
        await round_of(calls)
        after.append(opened())
    leaked = after[-1] - after[1]
    kept.check()
    await settled(kept.release())
    await settled(hf.close())
    print(json.dumps({"without": without, "again": again, "leaked": leaked, "threads": threading.active_count()}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
