"""A name never becomes a path."""

from __future__ import annotations

import re

import pytest

from holdfast.engines.files.escaping import folder_of

NASTY = [
    "..",
    ".",
    "../x",
    "a/../../b",
    "/etc/x",
    "foo..bar",
    "@scope/name_1.0.0",
    "Foo",
    "foo",
    "FOO",
    "con",
    "a.",
    "~",
]


@pytest.mark.acceptance("A2-13")
@pytest.mark.parametrize("name", [*NASTY, "é" * 200, "x" * 512, "\n", "=h", "=2F"])
def test_a_name_becomes_one_plain_path_component(name):
    """No slash, no leading dot, no capital letter that a filesystem may fold, and short enough for all of them."""
    folder = folder_of(name)

    assert re.fullmatch(r"[a-z0-9_=-](?:[a-z0-9._-]|=|[0-9A-F])*", folder)
    assert 0 < len(folder) <= 120


def test_two_names_never_share_a_folder():
    """Also where they differ only in case, in punctuation, or far from the beginning."""
    names = [*NASTY, "=2F", "/", "=h", *("n" * 200 + tail for tail in "ab"), "n" * 120, "n" * 121]

    assert len({folder_of(name).casefold() for name in names}) == len(names)
