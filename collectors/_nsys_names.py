"""What do the name ids of a batch say? Only texts that some event refers to are ever looked up.

StringIds of an export holds much else: the environment of the recorded program, its output, command lines.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import int32_array, integers, is_null, text_array
from tracekit.collectors._nsys_export_batches import FIRST_OWN, Batch, Export
from tracekit.secrets import redact

UNKNOWN = "[unknown]"
REDACTED = "text with the shape of a credential, blanked (distinct values)"
NO_NAME = "name that is not in StringIds"

_VERSION = re.compile(r"_v\d{4,}$")  # of the runtime in which a call came up: cudaLaunchKernel_v7000


class Names:
    """The texts of an export's StringIds, as far as they were asked for. Thread-safe."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._known: dict[int, str | None] = {}
        self._lock = threading.Lock()

    def texts(self, ids: pa.Array, own: list[str]) -> pa.DictionaryArray:
        """The texts of ids; NULL where there is none."""
        encoded = ids.dictionary_encode()
        wanted = integers(encoded.dictionary).tolist()
        with self._lock:
            missing = sorted({number for number in wanted if number >= 0 and number not in self._known})
            found = self._export.strings(missing) if missing else {}
            self._known.update((number, found.get(number)) for number in missing)
            values = [self._known.get(number) for number in wanted]
        for place, number in enumerate(wanted):
            if number <= FIRST_OWN and FIRST_OWN - number < len(own):
                values[place] = own[FIRST_OWN - number]
        return _dictionary(encoded.indices, values)

    def with_texts(self, batch: Batch, columns: dict[str, str]) -> pa.Table:
        """A batch in which columns of ids fill the gaps in columns of texts. columns: of texts by column of ids."""
        table = batch.table
        for ids, texts in columns.items():
            of_ids = self.texts(table.column(ids).combine_chunks(), batch.own)
            if of_ids.null_count < len(of_ids):
                given = table.column(texts).combine_chunks()
                filled = pc.coalesce(given.cast(pa.string()), of_ids.cast(pa.string()))
                table = table.set_column(table.schema.get_field_index(texts), texts, filled)
        return table.drop_columns(list(columns))


def tidy_names(column: pa.DictionaryArray, repaired: Counter[str], *, of_calls: bool) -> pa.DictionaryArray:
    """Names without credentials, none of them NULL. of_calls: of API calls, whose version is cut off."""
    values = column.dictionary.to_pylist()
    unnamed = int(is_null(column.indices).sum())
    if unnamed:
        repaired[NO_NAME] += unnamed
    shorten: Callable[[str], str] = (lambda text: _VERSION.sub("", text)) if of_calls else str
    return _dictionary(column.indices, [shorten(text) for text in _redacted(values, repaired)], otherwise=UNKNOWN)


def tidy_texts(column: pa.DictionaryArray, repaired: Counter[str]) -> pa.DictionaryArray:
    """Texts without credentials."""
    return _dictionary(column.indices, _redacted(column.dictionary.to_pylist(), repaired))


def _redacted(values: list[str], repaired: Counter[str]) -> list[str]:
    cleaned = list(map(redact, values))
    changed = sum(map(str.__ne__, values, cleaned))
    if changed:
        repaired[REDACTED] += changed
    return cleaned


def _dictionary(indices: pa.Array, values: list[str] | list[str | None], otherwise: str | None = None) -> pa.Array:
    """The values that indices point to, each text once in the dictionary. otherwise: for NULL."""
    place: dict[str, int] = {}
    code = [-1 if value is None else place.setdefault(value, len(place)) for value in [*values, otherwise]]
    codes = np.array(code, np.int32)[integers(indices, len(values))]
    null = codes < 0
    return pa.DictionaryArray.from_arrays(int32_array(codes, null if null.any() else None), text_array(list(place)))
