"""Extras that are not installed are told by the name under which they can be."""

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
def test_an_extra_that_is_missing_is_told_with_what_to_install(package, module, extra):
    """`lance` is a module of a package that is called otherwise: whoever installs it by that name has another one."""
    # A module that is None is one that is not there. In a process of its own: here they have been imported.
    program = f"import sys; sys.modules[{package!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert ended.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {package}")
    assert f"is not installed: pip install 'holdfast[{extra}]'" in ended.stderr
