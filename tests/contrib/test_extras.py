"""A missing extra raises an error with the `pip install` line."""

import subprocess
import sys

import pytest

MISSING = [
    ("prometheus_client", "holdfast.contrib.prometheus", "prometheus"),
    ("opentelemetry", "holdfast.contrib.opentelemetry", "opentelemetry"),
    ("lance", "holdfast.contrib.lancedb", "lancedb"),
    ("lance", "holdfast.contrib.lancedb.aio", "lancedb"),
    ("pyarrow", "holdfast.contrib.lancedb", "lancedb"),
]


@pytest.mark.parametrize(("package", "module", "extra"), MISSING)
def test_a_missing_extra_is_reported_with_what_to_install(package, module, extra):
    """The module `lance` belongs to a package of another name: installing `lance` would bring a different package."""
    # `None` in sys.modules makes the import fail. In a new process, because this one has imported them.
    program = f"import sys; sys.modules[{package!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert ended.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {package}")
    assert f"is not installed: pip install 'holdfast[{extra}]'" in ended.stderr
