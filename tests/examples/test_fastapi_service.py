"""The FastAPI service stops within a second of SIGTERM: under uvicorn, under gunicorn, and with asyncio.run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import holdfast
from holdfast.testing import eventually
from holdfast.testing.ports import Port

ROOT = Path(__file__).resolve().parents[2]
PLAIN = """
import asyncio, signal, sys
sys.path.insert(0, {examples!r})
from fastapi_service import app, lifespan

async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with lifespan(app):
        await over.wait()

asyncio.run(main())
"""


@pytest.fixture(params=["uvicorn", "gunicorn", "asyncio.run"])
def service(request, tmp_path):
    """Start the service; yield its process, its address (or none), and the URL of its engine."""
    url = f"sqlite:///{tmp_path}/service.db"
    with Port() as reserved:
        port = reserved.number
        address = f"127.0.0.1:{port}"
        command = {
            "uvicorn": ["-m", "uvicorn", "--port", str(port), "examples.fastapi_service:app"],
            "gunicorn": [
                *("-m", "gunicorn", "-b", address, "-k", "uvicorn_worker.UvicornWorker"),
                *("--graceful-timeout", "20", "examples.fastapi_service:app"),
            ],
            "asyncio.run": ["-c", PLAIN.format(examples=str(ROOT / "examples"))],
        }[request.param]
        log = tmp_path / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "HOLDFAST_URL": url},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process, None if request.param == "asyncio.run" else f"http://{address}", url, log
        finally:
            process.kill()
            process.wait()


def test_the_service_stops_within_a_second_of_sigterm(service):
    """A background leader, a worker and a waiting lock end at once; nothing is left to expire."""
    process, address, url, log = service
    with holdfast.connect(url) as hf, hf.lock("service/cleanup"):
        eventually(lambda: "leading" in log.read_text() and "handled" in log.read_text(), 30, "a handled job")
        eventually(lambda: len(hf.show("service/cleanup").waiters) == 1, 10, "the service waits for the lock")
        if address is not None:
            assert httpx.post(f"{address}/report", timeout=10).json()["fence"] > 0

        began = time.monotonic()
        process.send_signal(signal.SIGTERM)

        assert process.wait(10) in (0, -signal.SIGTERM), log.read_text()  # uvicorn raises the signal again at its end
        assert time.monotonic() - began < 1
        assert "Traceback" not in log.read_text()
        assert hf.show("service/cleanup").waiters == ()
        assert hf.leader("service/scheduler").current() is None
        assert hf.queue("service/jobs").stats().consumers == 0
