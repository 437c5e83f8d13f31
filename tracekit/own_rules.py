"""What is a kernel for, by the rules of the user before the built-in ones?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracekit.classify import Rules, classify_kernel, read_rules
from tracekit.inputs import PathLike


class RulesWarning(UserWarning):
    """A rules file of the user changes nothing."""


@dataclass(frozen=True, slots=True)
class OwnRules:
    """rules: all of them, the built-in ones last, None if the user gave none. of_file: those of each of his files."""

    rules: Rules | None = None
    of_file: Mapping[Path, Rules] = field(default_factory=dict)

    @classmethod
    def load(cls, files: Sequence[PathLike]) -> OwnRules:
        """Those of the files, before the built-in ones. Raises RulesError for a mistake in them."""
        paths = [Path(one) for one in files]
        return cls(Rules.load(paths) if paths else None, {path: Rules.of(read_rules(path)) for path in paths})

    def elsewhere(self) -> OwnRules:
        """The same for another trace, where a rule that matches nothing is no mistake."""
        return replace(self, of_file={})

    def classes(self, names: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Category and subcategory of each row: of its kind, name and op_name."""
        classify = classify_kernel if self.rules is None else self.rules.classify
        for file, own in self.of_file.items():
            if all(own.match(row["name"], row["op_name"] or None) is None for row in names):
                warnings.warn(f"no rule of {file} matches a name in this trace", RulesWarning, stacklevel=8)
        found = []
        for row in names:
            match row["kind"]:
                case "memcpy" | "memset":
                    found.append(("memory", str(row["kind"])))
                case "graph":
                    found.append(("graph", ""))
                case _:
                    found.append(classify(row["name"], row["op_name"] or None))
        return found
