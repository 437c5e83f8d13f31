"""Which sequences of kernels could be one? Reads the catalogue, `fusion_patterns.toml`, which states its format."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from tracekit.classify import CATEGORIES
from tracekit.errors import RulesError

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

CATALOGUE = Path(__file__).with_suffix(".toml")
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM", "torch": "plain PyTorch"}
_ELEMENT_KEYS = frozenset(("category", "name", "op", "not"))
_PATTERN_KEYS = frozenset(
    ("name", "title", "unfused", "fused", "fused_ops", "removes", "sure", "fusible", "price", "switch")
)
_TOKEN = re.compile(
    r"(?P<open>\()|(?P<close>\))(?P<times>[?+*]?)|(?P<or>\|)|(?P<passed>~?)(?P<name>\w+)(?P<kept>!?)(?P<count>[?+*]?)"
)
_NEVER = "[^\\s\\S]"  # a regular expression that no character matches


@dataclass(frozen=True, slots=True)
class Work:
    """What tells one kind of device work: names as words (classify.words), op "" without one, category as in Rows."""

    name: str
    op: str
    category: str
    subcategory: str


@dataclass(frozen=True, slots=True)
class Element:
    """A kind of device work that sequences are written with."""

    categories: frozenset[str]
    name: re.Pattern[str] | None
    op: re.Pattern[str] | None
    unless: re.Pattern[str] | None

    def matches(self, work: Work) -> bool:
        """Whether this work is of the kind."""
        if not self.categories & {work.category, f"{work.category}/{work.subcategory}"}:
            return False
        if self.unless is not None and (self.unless.search(work.name) or self.unless.search(work.op)):
            return False
        asked = [(self.name, work.name), (self.op, work.op)]
        wanted = [pattern.search(text) for pattern, text in asked if pattern is not None]
        return not wanted or any(found is not None for found in wanted)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a sequence: an element, or a mark of a regular expression. kept: its result is written all the same.
    passed: it stays a kernel of its own.
    """

    element: str = ""
    mark: str = ""
    kept: bool = False
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of the catalogue. sequences: alternatives, none of what the code finds by itself. switches: how to get
    it, by the keys of ENGINES."""

    name: str
    title: str
    sequences: tuple[tuple[Piece, ...], ...]
    fused: tuple[re.Pattern[str], ...]
    fused_ops: tuple[re.Pattern[str], ...]
    removes: str
    price: str
    switches: Mapping[str, str]
    sure: bool = True
    fusible: bool = True

    def is_fused(self, work: Work) -> bool:
        """Whether this work does all of it in one kernel already."""
        return any(one.search(work.name) for one in self.fused) or any(one.search(work.op) for one in self.fused_ops)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Kinds of device work by name, and patterns in the order in which they are looked for."""

    elements: Mapping[str, Element]
    patterns: tuple[Pattern, ...]

    def pattern(self, name: str) -> Pattern | None:
        """The pattern of that name."""
        return next((one for one in self.patterns if one.name == name), None)

    def expression(self, pattern: Pattern, sequence: tuple[Piece, ...], letters: Mapping[str, str]) -> str:
        """A sequence as a regular expression over letters that stand for kinds of work: letters has those of each
        element."""
        parts = []
        for piece in sequence:
            own = letters.get(piece.element, "")
            parts.append((f"[{re.escape(own)}]" if own else _NEVER) if piece.element else "")
            parts.append(piece.mark)
        return "".join(parts)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The built-in one."""
    return read_catalogue(CATALOGUE)


def read_catalogue(path: Path) -> Catalogue:
    """Read one catalogue; raises RulesError, naming the file and the entry, where it is none."""
    try:
        content = _toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise RulesError(f"{path}: not a TOML file: {error}") from error
    elements, patterns = content.pop("element", {}), content.pop("pattern", [])
    if content or not isinstance(elements, dict) or not isinstance(patterns, list):
        raise RulesError(f"{path}: a catalogue holds [element.NAME] and [[pattern]] tables and nothing else")
    kinds = {name: _element(table, f"{path}: element {name}") for name, table in elements.items()}
    found = tuple(_pattern(table, kinds, f"{path}: pattern {at}") for at, table in enumerate(patterns, 1))
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RulesError(f"{path}: two patterns are called {', '.join(twice)}")
    return Catalogue(kinds, found)


def _element(table: object, source: str) -> Element:
    if not isinstance(table, dict):
        raise RulesError(f"{source}: not a table")
    _known(table, _ELEMENT_KEYS, source)
    categories = _texts(table.get("category", []), "category", source)
    if not categories:
        raise RulesError(f"{source}: category is missing")
    for one in categories:
        if one.partition("/")[0] not in CATEGORIES:
            raise RulesError(f"{source}: unknown category {one!r}; known are {', '.join(CATEGORIES)}")
    patterns = {key: _compiled(_text(table[key], key, source), source) for key in ("name", "op", "not") if key in table}
    return Element(frozenset(categories), patterns.get("name"), patterns.get("op"), patterns.get("not"))


def _pattern(table: object, elements: Mapping[str, Element], source: str) -> Pattern:
    if not isinstance(table, dict):
        raise RulesError(f"{source}: not a table")
    _known(table, _PATTERN_KEYS, source)
    for key in ("name", "title", "removes", "price"):
        if key not in table:
            raise RulesError(f"{source}: {key} is missing")
    text = {key: _text(table[key], key, source) for key in ("name", "title", "removes", "price")}
    source = f"{source} ({text['name']})"
    flags = {key: table.get(key, True) for key in ("sure", "fusible")}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise RulesError(f"{source}: {key} must be true or false")
    switches = table.get("switch", {})
    if not isinstance(switches, dict):
        raise RulesError(f"{source}: switch is a table of engines")
    _known(switches, frozenset(ENGINES), source)
    return Pattern(
        name=text["name"],
        title=text["title"],
        removes=text["removes"],
        price=text["price"],
        sure=flags["sure"],
        fusible=flags["fusible"],
        sequences=tuple(
            _sequence(one, elements, source) for one in _texts(table.get("unfused", []), "unfused", source)
        ),
        fused=tuple(_compiled(one, source) for one in _texts(table.get("fused", []), "fused", source)),
        fused_ops=tuple(_compiled(one, source) for one in _texts(table.get("fused_ops", []), "fused_ops", source)),
        switches={key: _text(value, key, source) for key, value in switches.items()},
    )


def _sequence(written: str, elements: Mapping[str, Element], source: str) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for token in written.split():
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise RulesError(
                f"{source}: {token!r} of {written!r} is neither an element (~ before it, ! ? + * behind it) nor ( ) |"
            )
        if found["open"]:
            pieces.append(Piece(mark="(?:"))
        elif found["close"]:
            pieces.append(Piece(mark=f"){found['times']}"))
        elif found["or"]:
            pieces.append(Piece(mark="|"))
        elif found["name"] in elements:
            pieces.append(Piece(found["name"], found["count"], bool(found["kept"]), bool(found["passed"])))
        else:
            raise RulesError(f"{source}: no element is called {found['name']!r}; there are {', '.join(elements)}")
    _compiled("".join(("x" if piece.element else "") + piece.mark for piece in pieces), f"{source}: {written!r}")
    if not pieces:
        raise RulesError(f"{source}: an empty sequence")
    return tuple(pieces)


def _known(table: Mapping[str, object], keys: frozenset[str], source: str) -> None:
    for key in table:
        if key not in keys:
            raise RulesError(f"{source}: unknown key {key!r}; known are {', '.join(sorted(keys))}")


def _text(value: object, key: str, source: str) -> str:
    if not isinstance(value, str) or not value:
        raise RulesError(f"{source}: {key} must be a string")
    return value


def _texts(value: object, key: str, source: str) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    return [_text(one, key, source) for one in listed]


def _compiled(pattern: str, source: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RulesError(f"{source}: {pattern!r} is not a regular expression: {error}") from error
