"""A process that publishes one message after the other, and writes down how long each took."""

from __future__ import annotations

import time

import holdfast
from holdfast.testing import ready


def send(url, queue, path):
    """Publish until the process is ended; print when each publish began, and how long it took, in seconds."""
    with holdfast.connect(url) as hf, open(path, "a", buffering=1) as file:
        ours = hf.queue(queue)
        ours.publish(0)
        ready()
        for number in range(1, 1_000_000):
            began = time.monotonic()
            ours.publish(number)
            file.write(f"{began} {time.monotonic() - began}\n")
            time.sleep(0.001)
