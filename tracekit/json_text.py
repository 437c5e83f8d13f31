"""A value as JSON that every program reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal


def json_text(value: object, indent: int | None = None) -> str:
    """Any value as JSON text: sums stay integers, NaN and infinity are null, times and the like are text."""
    return json.dumps(json_value(value), indent=indent, allow_nan=False)


def json_value(value: object) -> object:
    """A value as `json_text` writes it, before it is text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.hex() if isinstance(value, bytes) else str(value)
