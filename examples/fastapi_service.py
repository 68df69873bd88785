"""A FastAPI service with a leader, a worker and a lock, which stops promptly.

    python examples/fastapi_service.py            # serves on port 8000, until Ctrl-C or SIGTERM
    uvicorn examples.fastapi_service:app          # the same, started by uvicorn
    gunicorn -k uvicorn_worker.UvicornWorker examples.fastapi_service:app

One process of the fleet leads and publishes a job each second; all of them work on jobs; one of them cleans up, and the
others wait for its lock. At the end of the lifespan, leaving the client's block calls `close()`: it ends the leader's
term, stops the worker, ends every waiting acquire with `Closed`, and returns when the work that runs has finished. A
request is different: the server lets it finish first, so its lock has a short timeout. `HOLDFAST_URL` chooses the
engine.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Request

from holdfast import Closed, NotAcquired, aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def handle(message: aio.Message) -> None:
    """Do the work of one message; it is acked when this function returns."""
    print("handled", message.body, flush=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect, start what runs beside the requests, and stop it in the reverse order."""
    async with await aio.connect() as hf:
        jobs = hf.queue("service/jobs")

        async def schedule(term: aio.Term) -> None:
            print("leading", flush=True)
            while not await term.over.wait(1):
                await jobs.publish({"under fence": term.fence})

        async def clean_up() -> None:
            with suppress(Closed):  # the service stops
                async with hf.lock("service/cleanup"):
                    print("cleaning up", flush=True)

        app.state.hf = hf
        works = (hf.leader("service/scheduler", ttl=5).keep(schedule), jobs.worker(handle).run(), clean_up())
        tasks = [asyncio.create_task(work) for work in works]
        yield
    # The client is closed, so all of them have ended; an error of one of them is raised here.
    await asyncio.gather(*tasks)


app = FastAPI(lifespan=lifespan)


@app.post("/report")
async def report(request: Request) -> dict[str, int]:
    """Write a report under a lock: one process of the fleet at a time."""
    try:
        async with request.app.state.hf.lock("service/report", timeout=2) as lease:
            return {"fence": lease.fence}
    except NotAcquired as error:
        raise HTTPException(503, str(error)) from error


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(1)
    import uvicorn

    uvicorn.run(app)
