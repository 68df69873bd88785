"""What Arrow would leave out in silence: the half of 1.5 in a column of whole numbers, a field that a struct has not.

The rule: a value is stored as it was given, or refused. Whatever else does not fit, Arrow says itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import pyarrow as pa


def lossy(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[str]:
    """The columns in which a part of some value would be gone."""
    suspects = [field for field in schema if _may_lose(field.type)]  # vectors, which are long, are none
    return [each.name for each in suspects if any(_loses(row.get(each.name), each.type) for row in rows)]


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
