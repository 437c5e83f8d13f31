"""Do two profilers mean the same kernel? What its name is in each of the ways in which profilers print it.

CUPTI (torch.profiler, Nsight Systems) and Nsight Compute demangle differently: spaces, `const` before or after the
type, `(int)4` for `4`, real parameter types or `T1`, namespaces or none. Both can print the function's name alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

_LOST_BRACKET = re.compile(r"(?<=\w)<unnamed>::")  # ncu may print `f<<unnamed>::T>` so
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<?\bunnamed>|\{anonymous\}|\(anonymous\))::")
# `::{lambda(float)#1}` to CUPTI is `::[lambda(float) (instance 1)]` to Nsight Compute, which may lose `const::[` of it.
_LAMBDA = re.compile(r"(?:\bconst\b)?(?:::)?[\[{]?(?<!\w)lambda\(")
_INSTANCE = re.compile(r"\)\s*\(instance (\d+)\)\]")
_CAST = re.compile(r"\([A-Za-z_][\w: ]*\)(?=-?\d)")  # `(int)4`, `(bool)1`, `(ns::Kind)2`
_SUFFIX = re.compile(r"(?<![\w.])(\d+)(?:u|l)+\b", re.IGNORECASE)  # `4ul`
_WORDS = re.compile(r"\b(?:const|volatile|struct|class|enum)\b|\bvoid\s+(?=[A-Za-z_])")
_BOOLEAN = {"true": "1", "false": "0"}
_BOOLEANS = re.compile(r"\b(?:true|false)\b")
_NEEDLESS_SPACE = re.compile(r"(?<!\w) | (?!\w)")
_QUALIFIER = re.compile(r"[A-Za-z_]\w*::")
_MANGLED = re.compile(r"_Z(?:L|N|NK|NV|NKV)?(?=\d|S|\d*_GLOBAL)")
_OPEN, _CLOSE = "<([{", ">)]}"


@dataclass(frozen=True, slots=True)
class NameForms:
    """A kernel's name, each form with less in it than the one before.

    signature: namespaces, name and template arguments, spelt one way; no return type, no parameters. simplified: the
    same without namespaces. function: the bare function name. is_bare: nothing but that was printed, so that it can
    stand for any instance of the template.
    """

    signature: str
    simplified: str
    function: str
    is_bare: bool


def name_forms(name: str) -> NameForms:
    """The forms of a kernel's name, demangled, mangled (Itanium ABI, only its function's name is read) or bare."""
    if name.startswith("_Z") and (function := _demangled_function(name)):
        return NameForms(name, name, function, True)
    text = _ANONYMOUS.sub("", _LOST_BRACKET.sub("<", name)).partition(" [clone ")[0].strip()
    text = _INSTANCE.sub(r")#\1}", _LAMBDA.sub("{lambda(", text))
    head = text[: _end_of_name(text)].rstrip()
    start = _last_outside(head, " ")
    qualified = head[start + 1 :] if head[start + 1 :] else head
    signature = _spelt(qualified)
    simplified = _QUALIFIER.sub("", signature)
    function = re.split(r"[<(\[{]", simplified, maxsplit=1)[0] or simplified
    return NameForms(signature, simplified, function, text == head and "<" not in head)


def forms_table(names: Sequence[str]) -> pa.Table:
    """The rows of the table kernel_name_forms for distinct names."""
    forms = [name_forms(name) for name in names]
    return pa.table(
        {
            "name": pa.array(names, pa.string()),
            "signature": pa.array([one.signature for one in forms], pa.string()),
            "simplified": pa.array([one.simplified for one in forms], pa.string()),
            "function": pa.array([one.function for one in forms], pa.string()),
            "is_bare": pa.array([one.is_bare for one in forms], pa.bool_()),
        }
    )


def _end_of_name(text: str) -> int:
    """Where the parameters of a demangled function begin; its length without any."""
    outside = _outside(text)
    return next((at for at, character in enumerate(text) if character == "(" and outside[at] and at > 0), len(text))


def _last_outside(text: str, wanted: str) -> int:
    """The last place of a character outside all brackets, -1 if there is none."""
    outside = _outside(text)
    return next((at for at in reversed(range(len(text))) if text[at] == wanted and outside[at]), -1)


def _outside(text: str) -> list[bool]:
    """Of each character, whether it stands outside all brackets; a bracket that opens there does.

    `(8>0)` and `->` close nothing: a `>` ends only a `<` that was opened last.
    """
    opened: list[str] = []
    outside = []
    for at, character in enumerate(text):
        outside.append(not opened)
        if character in _OPEN:
            opened.append(character)
        elif character == ">":
            if opened and opened[-1] == "<" and text[at - 1 : at] != "-":
                opened.pop()
        elif character in _CLOSE and (match := _OPEN[_CLOSE.index(character)]) in opened:
            while opened.pop() != match:
                continue
    return outside


def _spelt(text: str) -> str:
    """One spelling: no casts, qualifiers of types or suffixes of numbers, booleans as numbers, spaces between words."""
    text = _SUFFIX.sub(r"\1", _CAST.sub("", _WORDS.sub("", text)))
    text = _BOOLEANS.sub(lambda match: _BOOLEAN[match[0]], text)
    return _NEEDLESS_SPACE.sub("", re.sub(r"\s+", " ", text))


def _demangled_function(name: str) -> str:
    """The last name of a nested or plain mangled name: `_ZN4vllm15rms_norm_kernelIfEEvPT_` -> rms_norm_kernel."""
    begin = _MANGLED.match(name)
    at, found = (begin.end() if begin else len(name)), ""
    while length := re.match(r"(?:St|S[a-z0-9]?_)?(\d+)", name[at:]):
        start = at + length.end()
        at = start + int(length[1])
        found = name[start:at]
    return found
