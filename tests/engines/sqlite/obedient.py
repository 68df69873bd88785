"""The parent's end of a child that obeys. In a module of its own: there are several `conftest`, and one name."""

import json


class Child:
    """A process that obeys: `ask` waits for its answer, `order` does not."""

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
