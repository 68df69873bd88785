"""A missing library raises an error with the `pip install` line."""

import subprocess
import sys

import pytest

MISSING = [
    ("prometheus_client", "holdfast.contrib.prometheus", "holdfast[prometheus]"),
    ("opentelemetry", "holdfast.contrib.opentelemetry", "holdfast[opentelemetry]"),
    ("lance", "holdfast.contrib.lancedb", "holdfast-lancedb"),
    ("lance", "holdfast.contrib.lancedb.aio", "holdfast-lancedb"),
    ("pyarrow", "holdfast.contrib.lancedb", "holdfast-lancedb"),
]


@pytest.mark.parametrize(("library", "module", "package"), MISSING)
def test_a_missing_library_is_reported_with_what_to_install(library, module, package):
    """The module `lance` belongs to a package of another name: installing `lance` would bring a different package."""
    # `None` in sys.modules makes the import fail. In a new process, because this one has imported them.
    program = f"import sys; sys.modules[{library!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert ended.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {library}")
    assert f"is not installed: pip install '{package}'" in ended.stderr
