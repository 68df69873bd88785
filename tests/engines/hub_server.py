"""The server of the minimal engine: texts under names, one transaction at a time, in the memory of this process.

Tests break it on purpose: `break_at` closes a connection at a step, `restart` forgets everything.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time

from holdfast.names import new_token


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    hub: Hub


class Hub:
    """A running server; `url` leads to it."""

    def __init__(self):
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.hub = self
        self.port = self._server.server_address[1]
        self.url = f"hub://127.0.0.1:{self.port}"
        self.connections = set()
        self.break_at = ""  # "load": at that request; "commit": before it; "committed": after it, without a reply
        self.begun = 0
        self.restart()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def restart(self):
        """Forget everything, end every connection, and go on under another id."""
        self.id = new_token()
        self.lock = threading.Lock()
        self.stored, self.heartbeats, self.subscribers = {}, {}, {}
        self.cut()

    def cut(self):
        """End every connection."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.request.shutdown(2)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self.cut()


class _Connection(socketserver.StreamRequestHandler):
    """One connection of a client."""

    disable_nagle_algorithm = True

    def handle(self):
        self.hub, self.changes, self.held = self.server.hub, {}, None
        self.hub.connections.add(self)
        self._send(self.hub.id)
        try:
            for line in self.rfile:
                request = json.loads(line)
                do = request.pop("do")
                if self.hub.break_at == do:
                    self.hub.break_at = ""
                    return
                answer = getattr(self, f"do_{do}")(**request)
                if self.hub.break_at == "committed" and do == "commit":
                    self.hub.break_at = ""
                    return
                self._send(answer)
        except OSError:
            pass
        finally:
            self.hub.connections.discard(self)
            self._unlock()

    def _send(self, value):
        self.wfile.write(json.dumps(value).encode() + b"\n")

    def _unlock(self):
        held, self.held = self.held, None
        if held is not None:
            held.release()

    def do_begin(self, names):
        if names:
            self.held = self.hub.lock
            self.held.acquire()
        self.hub.begun += 1
        self.changes, self.notices, self.alive = {}, [], []
        self.now_us = time.monotonic_ns() // 1000
        return [self.now_us, time.time_ns() // 1000]

    def do_load(self, name):
        stored = self.changes.get(name) or self.hub.stored.get(name)
        return stored[0] if stored is not None and stored[1] > self.now_us else None

    def do_store(self, name, body, forget_us):
        self.changes[name] = (body, forget_us)

    def do_heartbeats(self, clients):
        return {client: self.hub.heartbeats.get(client, 0) for client in clients}

    def do_heartbeat(self, client):
        self.alive.append(client)

    def do_notify(self, client, token):
        self.notices.append((client, token))

    def do_commit(self):
        self.hub.stored.update(self.changes)
        self.hub.heartbeats.update(dict.fromkeys(self.alive, self.now_us))
        self._unlock()
        for client, token in self.notices:
            subscriber = self.hub.subscribers.get(client)
            if subscriber is not None:
                with contextlib.suppress(OSError, ValueError):
                    subscriber._send(token)

    def do_subscribe(self, client):
        self.hub.subscribers[client] = self

    def do_names(self):
        return list(self.hub.stored)
