"""How many examples the fuzz tests try, the bounds that every call keeps, and values that other programs may write.

`make test` tries the same examples each time. `make fuzz MINUTES=…` tries new ones until the time is over, and keeps
every counter-example in `.hypothesis`: the next run of the same test tries it first.
"""

import os
import time
import tracemalloc
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast import HoldfastError

LONG = "HOLDFAST_FUZZ_MINUTES"
_CPU_S = 1.0
_BYTES = 64 * 2**20
_ALL = {"deadline": None, "suppress_health_check": list(HealthCheck)}

MIB = 2**20


def fuzz(examples=50):
    """Return the settings of a test: this number of fixed examples, or with `make fuzz` many new ones."""
    if os.environ.get(LONG):
        return settings(max_examples=10 * examples, print_blob=True, **_ALL)
    return settings(max_examples=examples, derandomize=True, database=None, **_ALL)


@contextmanager
def bounded():
    """Refuse any error that is not the library's own, more than a second of CPU time, and more than 64 MiB."""
    began_s = time.thread_time()
    tracemalloc.start()
    try:
        try:
            yield
        except HoldfastError as error:
            if not str(error):
                raise AssertionError("an error must have a text") from error
        spent_s, (_, peak) = time.thread_time() - began_s, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert spent_s < _CPU_S, f"the call took {spent_s:.2f} s of CPU time"
    assert peak < _BYTES, f"the call allocated {peak:,} bytes"


# Numbers at every edge: of Lua, of SQLite, of 32 bits, of digits that `int()` refuses.
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([0, -1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 10**30])
)
TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "0", "-1", "9" * 5000, "\x00", "\ud800", "null", "{}", "[" * 5000])
)
# Any value that JSON or a server's reply may contain.
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=8), inner, max_size=6)),
    max_leaves=12,
)


@st.composite
def changed(draw, valid):
    """Draw a valid list with one value changed, removed or added."""
    values = list(valid)
    at = draw(st.integers(0, len(values)))
    how = draw(st.sampled_from(["change", "remove", "add", "nothing"]))
    if how == "add":
        values.insert(at, draw(VALUES))
    elif values and how != "nothing":
        at %= len(values)
        values[at : at + 1] = [] if how == "remove" else [draw(VALUES)]
    return values


def filled(pieces):
    """Return a strategy of texts of up to 1 MiB: one of these pieces, over and over, with another at each end."""
    piece = st.sampled_from(pieces)

    def join(first, middle, last, size):
        return (first + middle * (size // max(1, len(middle))) + last)[:MIB]

    return st.builds(join, piece, piece, piece, st.sampled_from([0, 1, 10, 1000, MIB]))
