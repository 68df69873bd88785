"""An npm registry on loopback: the test serves a few packages, and can make it slow or faulty."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

SHARED_FILES = 60


def tarball(name, version, dependencies, files, scripts):
    """Return the archive that npm downloads."""
    manifest = {"name": name, "version": version, "type": "module", "main": "index.js", "dependencies": dependencies}
    manifest["scripts"] = scripts
    imports = "".join(f"import '{dependency}';\n" for dependency in dependencies)
    contents = {
        "package.json": json.dumps(manifest),
        "index.js": f"{imports}export default '{name}@{version}';\n",
        **{f"files/{number:03}.txt": f"{name} {number} " * 50 for number in range(files)},
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in contents.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


class Registry:
    """A server of `alpha`, `beta`, `gamma`, which share a dependency, of `@scope/name`, and of added packages."""

    def __init__(self, host="127.0.0.1"):
        self.host = host
        self.packages = {}
        self.slow_s = 0.0
        self.failures = 0
        self.asked = []
        self._lock = threading.Lock()
        self.add("shared-dep", "1.0.0", files=SHARED_FILES)
        for name in ("alpha", "beta", "gamma"):
            self.add(name, "1.0.0", {"shared-dep": "1.0.0"}, files=20)
        self.add("solo", "1.0.0")
        self.add("alpha", "2.0.0", {"shared-dep": "1.0.0"})
        self.add("@scope/name", "1.2.3", {"shared-dep": "1.0.0"})
        self._server = ThreadingHTTPServer((host, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="registry", daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://{self.host}:{self._server.server_port}/"

    def add(self, name, version, dependencies=None, files=3, scripts=None):
        self.packages.setdefault(name, {})[version] = (
            dependencies or {},
            tarball(name, version, dependencies or {}, files, scripts or {}),
        )

    def fail(self, times):
        """Answer the next downloads with an error."""
        self.failures = times

    def _packument(self, name):
        versions = {}
        for version, (dependencies, packed) in self.packages[name].items():
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
            path = f"{self.url}-/{name.replace('/', '~')}/{version}.tgz"
            dist = {"tarball": path, "integrity": integrity, "shasum": hashlib.sha1(packed).hexdigest()}
            about = {"name": name, "version": version, "dependencies": dependencies, "dist": dist}
            versions[version] = {**about, "hasInstallScript": True}
        latest = max(self.packages[name])
        return json.dumps(
            {"name": name, "dist-tags": {"latest": latest, "next": latest}, "versions": versions}
        ).encode()

    def _answer(self, path):
        self.asked.append(path)
        if path.startswith("-/"):
            time.sleep(self.slow_s)
            with self._lock:
                if self.failures > 0:
                    self.failures -= 1
                    return 500, b"a bad day"
            _, name, file = path.split("/")
            return 200, self.packages[name.replace("~", "/")][file.removesuffix(".tgz")][1]
        return (200, self._packument(path)) if path in self.packages else (404, b'{"error": "not found"}')

    def _handler(registry):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                code, body = registry._answer(unquote(self.path).strip("/"))
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                return

        return Handler

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
