"""Finds values that Arrow would truncate silently: 1.5 in an integer column, an unknown field of a struct.

The rule: a value is stored as it was given, or refused. Arrow itself refuses all other values that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import pyarrow as pa


def lossy(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[str]:
    """Return the columns in which a value would be truncated."""
    candidates = [field for field in schema if _may_lose(field.type)]  # without the vectors, which are long
    return [each.name for each in candidates if any(_loses(row.get(each.name), each.type) for row in rows)]


def _may_lose(kind: pa.DataType) -> bool:
    if _is_list(kind):
        return _may_lose(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_struct(kind))


def _loses(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return isinstance(value, Real) and value % 1 != 0
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and any(
            name not in fields or _loses(part, fields[name]) for name, part in value.items()
        )
    if _is_list(kind) and _may_lose(kind) and isinstance(value, Iterable):
        return any(_loses(part, kind.value_type) for part in value)
    return False


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
