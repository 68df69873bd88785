"""The parent's end of a child process that runs orders. Not in `conftest`: several folders have one."""

import json


class Child:
    """A child process that runs orders: `ask` waits for the answer, `order` does not."""

    def __init__(self, worker):
        self.worker = worker
        self.pid = worker.pid

    def order(self, do, **details):
        self.worker.send_line(json.dumps({"do": do, **details}))

    def answer(self, timeout=10.0):
        return json.loads(self.worker.read_line(timeout))

    def ask(self, do, within=10.0, **details):
        self.order(do, **details)
        return self.answer(within)
