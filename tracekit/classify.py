"""What is a GPU kernel for? Its category and subcategory, from its name and, where that says nothing, its operator.

The rules are data: `kernel_rules.toml`, ordered, first match wins; the file states its own format. They are written
against a kernel's name as words (`words`), so one serves demangled templates, mangled names, CamelCase and snake_case.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from tracekit.errors import RulesError

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

CATEGORIES: tuple[str, ...] = (
    "attention",
    "linear_attention",
    "gemm",
    "dequant",
    "quant",
    "communication",
    "moe",
    "norm",
    "rope",
    "kv_cache",
    "activation",
    "sampling",
    "embedding",
    "softmax",
    "conv",
    "elementwise",
    "reduction",
    "index",
    "random",
    "pooling_interp",
    "fft",
    "loss",
    "optimizer",
    "fused_pointwise",
    "engine_metadata",
    "memory",
    "graph",
    "other",
)
"""Every category a kernel can have."""

BUILT_IN = Path(__file__).with_name("kernel_rules.toml")
OTHER = ("other", "")

_KEYS = ("category", "subcategory", "pattern", "any", "not", "on", "why")
_START = 3  # letters at the start of a word by which rules are looked up
_LONGEST = 1000  # a template may repeat itself for kilobytes; what a kernel does stands at its front


# ---- names as words ------------------------------------------------------------------------------------------------

# Namespaces that say nothing, or say GEMM of kernels that are none.
_NOISE = ("(anonymous namespace)::", "<unnamed>::", "unnamed>::", "fbgemm_gpu::", "deep_gemm::", "void ")
_SUFFIX = re.compile(r"(?:\.kd| \[clone [^\]]*\]|\.{3}|…)+$")
_GEMMA = re.compile(r"[Gg]emma(?=[_A-Z\d])")  # a model, not a matrix product
_ARGUMENTS_OF_CUTE_DSL = re.compile(r"_object_at_|_tensorptr|_tensor0{3}")
_DRIVER_COPY = re.compile(r"\[?(?:cuda |hip )?mem(?:cpy|set)\b", re.IGNORECASE)
_PUNCTUATION = re.compile(r"->|[<>(), ]")
_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|T\d*_|DF16[b_]|(\d+)(?=[A-Za-z_])")
_ACRONYM = re.compile(r"MoE|RoPE|ReLU|SiLU|GeLU|SwiGLU|GeGLU|LoRA")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]*[a-z0-9]+|[A-Z]+")


def words(name: str) -> str:
    """Return a kernel's or operator's name as lower-case words joined by "_", with one "_" at each end.

    The return type, the function's arguments and anonymous namespaces are dropped; mangled names are opened.
    """
    text = _SUFFIX.sub("", name.strip()[:_LONGEST])
    if text.startswith(("_Z", "__Z")):
        text = _demangled(text)
    elif not _DRIVER_COPY.match(text):
        for noise in _NOISE:
            text = text.replace(noise, "")
        text = _signature(text)
    if "emma" in text:
        text = _GEMMA.sub("", text)
    text = _ACRONYM.sub(lambda found: found.group().capitalize(), text)
    return f"_{'_'.join(_WORD.findall(text)).lower()}_"


def _signature(text: str) -> str:
    """Cut the return type before a function's name and the arguments behind its template parameters."""
    first = _ARGUMENTS_OF_CUTE_DSL.search(text)
    if first:
        text = text[: first.start()]
    if "(" not in text and "<" not in text:
        return text
    start, end, angles, parentheses = 0, len(text), 0, 0
    listed = False  # a comma outside brackets: the name is damaged, so a blank no longer ends a return type
    for found in _PUNCTUATION.finditer(text):
        mark = found.group()
        if mark == "(":
            if not (angles or parentheses or text.endswith("operator", 0, found.start())):
                end = found.start()
                break
            parentheses += 1
        elif mark == ")":
            parentheses = max(0, parentheses - 1)
        elif parentheses:  # comparisons inside parentheses are not brackets
            continue
        elif mark == "<":
            angles += 1
        elif mark == ">":
            angles = max(0, angles - 1)
        elif angles == 0 and mark == ",":
            listed = True
        elif angles == 0 and mark == " " and not listed and found.end() < len(text):
            start = found.end()
    return text[start:end] or text


def _demangled(text: str) -> str:
    """Return the identifiers in an Itanium-mangled name; a name that was cut gives those it has."""
    found = _MANGLED.search(text, 2)
    identifiers: list[str] = []
    while found and len(identifiers) < 64:
        end = found.end()
        if found[1] is not None and len(found[1]) <= 4:
            end += int(found[1])
            identifiers.append(text[found.end() : end])
        found = _MANGLED.search(text, end)
    return "::".join(one for one in identifiers if not one.startswith("_GLOBAL__")) or text


# ---- rules -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of a rule (a rule that lists several is several of these, in a row)."""

    category: str
    subcategory: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    on: str  # what is searched: "name" or "op"
    exact: tuple[bool, bool]  # whether pattern and unless are for the name as recorded rather than for its words
    literals: frozenset[str]  # one of these is in whatever matches; empty where that cannot be told
    source: str  # file and number, for messages

    def matches(self, recorded: str, as_words: str) -> bool:
        """Tell whether the rule holds for a name, given as recorded and as words."""
        if self.pattern.search(recorded if self.exact[0] else as_words) is None:
            return False
        return self.unless is None or self.unless.search(recorded if self.exact[1] else as_words) is None


@dataclass(frozen=True, slots=True)
class Rules:
    """An ordered list of rules; the first that matches wins.

    The index says which are worth trying: trying all takes six times as long.
    """

    rules: tuple[Rule, ...]
    index: Mapping[str, Mapping[str, tuple[tuple[str, int], ...]]]  # by `on`, then start of a word: literal, rule

    @classmethod
    def load(cls, extra: Sequence[Path] = ()) -> Rules:
        """Read the built-in rules, preceded by those of `extra` in the order given.

        Raises RulesError, naming the file and the rule's number, where a file is not one of rules.
        """
        return cls.of([rule for path in (*extra, BUILT_IN) for rule in read_rules(Path(path))])

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Rules:
        """Index rules, kept in their order."""
        ordered = tuple(rules)
        index: dict[str, dict[str, list[tuple[str, int]]]] = {"name": {}, "op": {}}
        for number, rule in enumerate(ordered):
            for literal in rule.literals or ("",):
                index[rule.on].setdefault(_start(literal), []).append((literal, number))
        return cls(ordered, {on: {start: tuple(of) for start, of in starts.items()} for on, starts in index.items()})

    def match(self, name: str, op: str | None = None) -> Rule | None:
        """Return the rule that decides about a kernel, None where no rule knows it. Never raises on any text."""
        texts = {"name": (name.strip(), words(name))}
        if not texts["name"][0]:
            return None
        if op and op.strip():
            texts["op"] = (op.strip(), words(op))
        candidates: set[int] = set()
        for on, (_, text) in texts.items():
            index = self.index[on]
            for start in index.keys() & {word[:_START] for word in text.split("_")}:
                candidates.update([number for literal, number in index[start] if literal in text])
        for number in sorted(candidates):
            rule = self.rules[number]
            if rule.matches(*texts[rule.on]):
                return rule
        return None

    def classify(self, name: str, op: str | None = None) -> tuple[str, str]:
        """Return (category, subcategory) of a kernel; ("other", "") where no rule knows it.

        `op` is the name of the host operator that launched it, asked where the kernel's name says nothing.
        """
        rule = self.match(name, op)
        return OTHER if rule is None else (rule.category, rule.subcategory)


@lru_cache(maxsize=1)
def _built_in() -> Rules:
    return Rules.load()


@lru_cache(maxsize=1 << 16)
def classify_kernel(name: str, op: str | None = None) -> tuple[str, str]:
    """Return (category, subcategory) of a kernel by the built-in rules; see `Rules.classify`."""
    return _built_in().classify(name, op)


# ---- patterns --------------------------------------------------------------------------------------------------------


def _has_capital(pattern: str) -> bool:
    return any(letter.isupper() for letter in re.sub(r"\\.", "", pattern))


_PIECE = re.compile(
    r"(?P<literal>[a-z0-9_])|(?P<group>\((?:\?:)?(?![?]))|(?P<look>\(\?)|(?P<end>\))|(?P<or>\|)|(?P<quantifier>[?*+]|\{\d*,?\d*\})"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)


def _literals(pattern: str) -> frozenset[str]:
    """Return strings of which one is in any text that the pattern matches; none where that cannot be told.

    Every alternative must offer one long enough to be looked up. Classes, optional letters, look-arounds offer none.
    """
    if _has_capital(pattern) or re.search(r"\(\?[a-zA-Z]", pattern):
        return frozenset()
    found, _ = _alternatives(list(_PIECE.finditer(pattern)), 0)
    return found


def _alternatives(pieces: Sequence[re.Match[str]], at: int, before: str = "") -> tuple[frozenset[str], int]:
    """Return the literals of the alternatives from `at` to the end of their group, and the index behind it.

    `before` is the literal text right before the group, with which each alternative begins.
    """
    union: set[str] = set()
    told = True
    offers: list[frozenset[str]] = []
    run = before
    while True:
        kind = pieces[at].lastgroup if at < len(pieces) else "end"
        if kind == "literal" and not _optional(pieces, at + 1):
            run += pieces[at].group()
            at += 1
            continue
        offers.append(frozenset({run} if len(run) >= _START else ()))
        if kind in ("group", "look"):
            inner, at = _alternatives(pieces, at + 1, run if kind == "group" else "")
            if kind == "group" and not _optional(pieces, at):
                offers.append(inner)
            run = ""
            continue
        run = ""
        if kind in ("or", "end"):
            best = max(offers, key=lambda offer: min(map(len, offer), default=0))
            union |= best
            told = told and bool(best)
            offers, run = [], before
        at += 1
        if kind == "end":
            return frozenset(union) if told else frozenset(), at


def _optional(pieces: Sequence[re.Match[str]], at: int) -> bool:
    return at < len(pieces) and pieces[at].group()[0] in "?*{"


def _start(literal: str) -> str:
    """Return the start of a word in a literal by which to look it up; "", which every name has, where there is none."""
    starts = re.findall(r"_([a-z0-9]{3}|[a-z0-9]{1,2}(?=_))", literal)
    return str(min(starts, key=lambda start: start == "ker", default=""))


# ---- reading a file of rules -----------------------------------------------------------------------------------------


def read_rules(path: Path) -> list[Rule]:
    """Read one file of rules; raises RulesError, naming the file and the rule's number, where it is not one."""
    try:
        content = _toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise RulesError(f"{path}: not a TOML file: {error}") from error
    tables = content.pop("rule", [])
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RulesError(f"{path}: a rules file holds [[rule]] tables and nothing else")
    return [rule for number, table in enumerate(tables, 1) for rule in _rules(table, f"{path}: rule {number}")]


def _rules(table: dict[str, object], source: str) -> list[Rule]:
    """Check one [[rule]] table; return a rule for each of its patterns."""
    for key, value in table.items():
        if key not in _KEYS:
            raise RulesError(f"{source}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        if key == "any":
            if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
                raise RulesError(f"{source}: any must be a list of one or more strings")
        elif not isinstance(value, str):
            raise RulesError(f"{source}: {key} must be a string")
    text = {key: value for key, value in table.items() if isinstance(value, str)}
    if "category" not in text:
        raise RulesError(f"{source}: category is missing")
    if text["category"] not in CATEGORIES:
        raise RulesError(f"{source}: unknown category {text['category']!r}; known are {', '.join(CATEGORIES)}")
    if ("pattern" in table) == ("any" in table):
        raise RulesError(f"{source}: one of pattern and any is needed")
    if text.get("on", "name") not in ("name", "op"):
        raise RulesError(f"{source}: on must be 'name' or 'op', not {text['on']!r}")
    listed = table.get("any", [table.get("pattern")])
    patterns = [str(one) for one in listed] if isinstance(listed, list) else []
    return [
        Rule(
            category=text["category"],
            subcategory=text.get("subcategory", ""),
            pattern=_compiled(pattern, source),
            unless=_compiled(text["not"], source) if "not" in text else None,
            on=text.get("on", "name"),
            exact=(_has_capital(pattern), _has_capital(text.get("not", ""))),
            literals=_literals(pattern),
            source=source,
        )
        for pattern in patterns
    ]


def _compiled(pattern: str, source: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RulesError(f"{source}: {pattern!r} is not a regular expression: {error}") from error
