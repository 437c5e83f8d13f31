"""Keep credentials out of what is stored.

Arguments are kept by allow-list, which drops environments and metadata as a whole. What remains is free text that
users write themselves (annotation names, string arguments); here the parts of it that have the shape of a credential
or of `NAME=value` are blanked.
"""

from __future__ import annotations

import re
from functools import lru_cache

REDACTED = "[redacted]"

# Shapes published by the issuers of the tokens: a fixed prefix and a long tail.
_TOKEN = re.compile(
    r"""
    \b(?:hf|nvapi|gh[pousr]|github_pat|glpat|xox[abeoprs]|sk|pk|rk|pypi|npm|dckr_pat|gsk|r8|wandb)[-_][A-Za-z0-9_\-]{16,}
    | \b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_\-]{30,}
    | \beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?
    | (?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,})
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)
    """,
    re.VERBOSE | re.DOTALL,
)
# NAME=value as in an environment. Kernel tunables (XBLOCK=16) have the same shape and a number for a value.
# A quote opens a value only if the value begins right behind it; else it closes a JSON text that ends in `NAME=`.
_ENVIRONMENT = re.compile(
    r"\b([A-Z][A-Z0-9_]{2,})=(?!\d+\b)"
    r"(?:\"[^\"\s,;:\]}][^\"]*(?:\"|$)|'[^'\s,;:\]}][^']*(?:'|$)|[^\s,;\"'])+"
)
_TELLING = (
    r"token|secret|passw(?:or)?d|passphrase|api[_\-]?key|access[_\-]?key|private[_\-]?key|credential|authorization"
)
_OPTION = re.compile(rf"(?i)(?<![\w\-])(--[a-z0-9_\-]*(?:{_TELLING})\s+)(?!-|\d+\b|\[redacted\])[^\s,;\"']{{6,}}")
_ASSIGNED = re.compile(
    rf"(?i)\b([a-z0-9_\-]*(?:{_TELLING}))([\"']?\s*[=:]\s*[\"']?)(?!\d+\b)"
    r"(?:(?<=\")[^\"\s,;:\]}][^\"]*|(?<=')[^'\s,;:\]}][^']*|(?:(?:bearer|basic)\s+)?[^\s,;\"'()&]{6,})"
)
_HINT = re.compile(
    r"[=@]|eyJ|AIza|-----BEGIN|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]|[a-z8][-_][A-Za-z0-9_\-]{16}|(?i:bearer|basic|token|secret|passw|key|cred|author)"
)


@lru_cache(1 << 16)
def redact(text: str) -> str:
    """The text with everything that looks like a credential or an environment variable blanked."""
    if _HINT.search(text) is None:
        return text
    blanked = _blank(text)
    while blanked != text:  # what is left after one pass can have such a shape again
        text, blanked = blanked, _blank(blanked)
    return text


def _blank(text: str) -> str:
    text = _TOKEN.sub(REDACTED, text)
    text = _OPTION.sub(lambda match: f"{match.group(1)}{REDACTED}", text)
    text = _ASSIGNED.sub(lambda match: f"{match.group(1)}{match.group(2)}{REDACTED}", text)
    return _ENVIRONMENT.sub(lambda match: f"{match.group(1)}={REDACTED}", text)
