"""TLS in front of a server that was built without it: real handshakes and certificates, with the ssl module of Python.

The servers of the wheels speak no TLS. A `FrontedServer` looks like one that does: its port accepts TLS, and checks
client certificates if they are `mutual`. Servers of one group reach each other through the same port without TLS; the
first byte of a connection tells the two apart.
"""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from holdfast.testing.ports import Port
from holdfast.testing.servers import Server, available

if TYPE_CHECKING:
    from holdfast.testing.servers import Certificates

_HANDSHAKE = b"\x16"  # the first byte of TLS; a command begins with another one
_BUS = 10000


@cache
def speaks_tls(kind: str) -> bool:
    """Return whether a server was built with TLS. The program ends at once in any case: it gets no certificate."""
    words = [str(available()[kind]), "--port", "0", "--tls-port", "0", "--tls-replication", "yes", "--save", ""]
    done = subprocess.run(words, check=False, capture_output=True, timeout=10)
    said = done.stdout + done.stderr
    return b"Failed finding TLS" not in said and b"FATAL CONFIG" not in said


def tls_kind() -> str:
    """Return a kind of server for tests of TLS: one that speaks it, if there is one; empty if there is no server."""
    kinds = [kind for kind in ("redis", "valkey", "redis-6.2") if kind in available()]
    return next((kind for kind in kinds if speaks_tls(kind)), next((kind for kind in kinds if kind == "valkey"), ""))


def server_of(kind: str, **options: Any) -> Server:
    """Return a server; if it has to speak TLS and cannot, one with TLS in front of it."""
    fronted = options.get("tls") is not None and not speaks_tls(kind)
    return (FrontedServer if fronted else Server)(kind, **options)


class TlsFront:
    """Accepts connections on a port and passes their bytes on to another port; a client that begins TLS gets it."""

    def __init__(self, host: str, port: int, target: int, tls: Certificates) -> None:
        self._target = (host, target)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(tls.certificate, tls.key)
        if tls.mutual:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(tls.authority)
        self._listener = socket.create_server((host, port), backlog=128)
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="tls-front", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and cut every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open.copy():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="tls-front", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = None
        self._open.add(client)
        try:
            first = client.recv(1, socket.MSG_PEEK)
            server = socket.create_connection(self._target, 5)
            server.settimeout(None)
            self._open.add(server)
            if first == _HANDSHAKE:
                raw, client = client, self._context.wrap_socket(client, server_side=True)
                self._open.discard(raw)
                self._open.add(client)
            _pass_on(client, server)
        except OSError:
            pass  # a refused certificate, a dead server, or a closed connection
        finally:
            for each in (client, server):
                if each is not None:
                    self._open.discard(each)
                    each.close()


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    other = {client: server, server: client}
    while True:
        # Decrypted bytes may wait inside the TLS object, where the kernel does not see them.
        waiting = isinstance(client, ssl.SSLSocket) and client.pending() > 0
        ready = [client] if waiting else select.select([client, server], [], [])[0]
        for each in ready:
            data = each.recv(65536)
            if not data:
                return
            other[each].sendall(data)


class FrontedServer(Server):
    """A server with TLS in front of it. `inner`: the port on which the server itself listens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.inner = Port()
        self._front: TlsFront | None = None
        super().__init__(*args, **options)

    def start(self, *, wait: bool = True) -> Self:
        """Start the front once, and the server."""
        if self._front is None:
            assert self.tls is not None
            self._front = TlsFront(self.host, self.port, self.inner.number, self.tls)
        return super().start(wait=wait)

    def close(self) -> None:
        """End the server and its front."""
        super().close()
        if self._front is not None:
            self._front.close()
        self.inner.close()

    def _settings(self) -> list[str]:
        tls, self.tls = self.tls, None
        try:
            settings = super()._settings()
        finally:
            self.tls = tls
        settings[settings.index("--port") + 1] = str(self.inner.number)
        announced = ["--replica-announce-port", str(self.port)]
        if "--cluster-enabled" in self._arguments:
            bus = str(self.port + _BUS)
            announced += ["--cluster-announce-port", str(self.port), "--cluster-announce-bus-port", bus]
            announced += ["--cluster-port", bus]
        return [*settings, *announced]
