"""What `--format json` promises: the schemas of analyze and compare in the package, from what documents them.

Tables come from the headers of the analyses' SQL, summaries from SUMMARIES here. `python -m tests.test_json_schema`
writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from tracekit.analysis import SEVERITIES
from tracekit.cli_commands import JSON_SCHEMA
from tracekit.compare_kernels import Match
from tracekit.compare_measure import Basis
from tracekit.compare_result import Verdict
from tracekit.macros import parse_macros
from tracekit.registry import analyses

Schema = dict[str, Any]

#: Columns of each summary. "integer?" may be null; {...: kind} maps names to it; "x?" as a name may be absent.
SUMMARIES: Mapping[str, Mapping[str, Any]] = {
    "attribution": {
        "rank": "integer",
        "device": "integer?",
        "span_ns": "integer?",
        "busy_ns": "integer?",
        "idle_ns": "integer?",
        "sum_ns": "integer?",
        "kernel_ns": "integer?",
        "unclassified_ns": "integer",
        "host_op_ns?": "integer",
    },
    "communication": {
        "rank": "integer",
        "device": "integer?",
        "span_ns": "integer",
        "busy_ns": "integer",
        "communication_ns": "integer",
        "exposed_ns": "integer",
        "wait_ns": "integer?",
        "transfer_ns": "integer?",
        "by_phase": [
            {
                "phase": "string",
                "steps": "integer",
                "step_ns": "integer",
                "communication_ns": "integer",
                "exposed_ns": "integer",
                "wait_ns": "integer?",
                "share": "number",
            }
        ],
    },
    "counters": {
        "rank": "integer",
        "device": "integer?",
        "kernels": "integer",
        "kernel_ns": "integer",
        "counted_ns": "integer",
        "share": "number",
        "ambiguous_ns": "integer",
        "other_gpu_ns": "integer",
        "unmeasured_ns": "integer",
        "by_class": {...: "integer"},
    },
    "cuda_graphs": {
        "rank": "integer",
        "device": "integer?",
        "steps": "integer",
        "launches": "integer",
        "replays": "integer",
        "graphed_share": "number",
        "saving_low_ns": "integer",
        "saving_high_ns": "integer",
        "blocked_low_ns": "integer",
        "blocked_high_ns": "integer",
        "eager_batches": {...: "string"},
        "largest_graph": {...: "integer?"},
    },
    "fusion": {
        "rank": "integer",
        "device": "integer?",
        "patterns": "integer",
        "fusible_ns": "integer",
        "busy_ns": "integer",
        "share": "number",
        "saving_low_ns": "integer",
        "saving_high_ns": "integer",
    },
    "health": {"status": "string", "ok": "integer", "warn": "integer", "fail": "integer"},
    "idle_gaps": {
        "rank": "integer",
        "device": "integer?",
        "span_ns": "integer",
        "busy_ns": "integer",
        "idle_ns": "integer?",
        "excluded_ns": "integer?",
        "uncertain_ns": "integer?",
        "by_cause": {...: "integer"},
        "per_step": [{"phase": "string", "steps": "integer", "step_ns": "integer", "cause": "string", "ns": "integer"}],
        "histogram": [{"from_ns": "integer", "to_ns": "integer?", "gaps": "integer", "ns": "integer"}],
        "skew_ns": "integer?",
    },
    "plan": {
        "rank": "integer?",
        "device": "integer?",
        "phase": "string?",
        "bucket": "string?",
        "steps": "integer?",
        "devices": "integer?",
        "step_ns": "integer?",
        "error": "number?",
        "busy_ns": "integer?",
        "launches_free_ns": "integer?",
        "total_ns": "integer?",
        "remedies": "integer",
        "saving_low_ns": "integer?",
        "saving_high_ns": "integer?",
        "reason": "string?",
    },
    "roofline": {
        "rank": "integer",
        "device": "integer?",
        "name": "string?",
        "described_by": "integer?",
        "spec": "string?",
        "peaks": {...: "number"},
        "bandwidth": "number?",
        "achievable": {...: "number"},
        "sources": {...: "string"},
        "problem": "string",
        "remarks": ["string"],
        "busy_ns": "integer",
        "by_bound": {...: "integer"},
        "by_evidence": {...: "integer"},
        "above_roof_ns": "integer",
    },
    "steps": {
        "rank": "integer",
        "device": "integer?",
        "source": "string?",
        "steps": "integer",
        "cut_steps": "integer",
        "empty_steps": "integer",
        "span_ns": "integer?",
        "in_steps_ns": "integer?",
        "inside_busy_ns": "integer?",
        "inside_idle_ns": "integer?",
        "between_ns": "integer?",
        "outside_busy_ns": "integer?",
        "outside_idle_ns": "integer?",
        "prefix_busy_ns": "integer?",
        "prefix_idle_ns": "integer?",
    },
}
#: Key `trace`.
TRACE: Mapping[str, Any] = {
    "schema": "integer",
    "scope": {...: None},
    "origin_ns": "integer",
    "ranks": ["integer"],
    "devices": [{"rank": "integer", "device": "integer", "name": "string"}],
    "sources": [
        {
            "path": "string",
            "format": "string",
            "rank": "integer",
            "world_size": "integer?",
            "truncated_at": "integer?",
        }
    ],
    "partial": ["string"],
    "events": {
        "read": "integer",
        "stored": "integer",
        "by_kind": {...: "integer"},
        "skipped": {...: "integer"},
        "repaired": {...: "integer"},
    },
    "counters?": [{...: None}],
}
FINDING: Mapping[str, Any] = {
    "id": "string",
    "severity": "string",
    "title": "string",
    "detail": "string",
    "saving_low_ns": "time",
    "saving_high_ns": "time",
    "evidence": ["integer"],
    "remedy": "string",
    "cost": "string",
    "verify": "string",
    "arithmetic": ["string"],
}
_TIMES = {
    "runs": "integer",
    "steps": "integer",
    "mean_ns": "time",
    "p50_ns": "time",
    "p90_ns": "time",
    "p99_ns": "time",
}
_INTERVAL = {"change_ns": "integer", "low_ns": "integer?", "high_ns": "integer?"}
_SIDE = {"names": ["string"], "events": "integer", "settings": {...: "string"}}
COMPARISON: Mapping[str, Any] = {
    "schema": "integer",
    "base": _SIDE,
    "candidate": _SIDE,
    "basis": "string",
    "groups": [
        {
            "phase": "string",
            "bucket": "string",
            "base": _TIMES,
            "candidate": _TIMES,
            **_INTERVAL,
            "p_value": "number?",
            "verdict": "string",
            "changed": "boolean",
            "reason": "string",
            "quantiles": [{"quantile": "string", **_INTERVAL}],
            "parts": [
                {
                    "kind": "string",
                    "name": "string",
                    "base_ns": "time",
                    "candidate_ns": "time",
                    **_INTERVAL,
                    "significant": "boolean",
                }
            ],
            "kernels": [
                {
                    "match": "string",
                    "base": ["string"],
                    "candidate": ["string"],
                    "category": "string",
                    "shape": "string",
                    "base_ns": "time",
                    "candidate_ns": "time",
                    "base_count": "number",
                    "candidate_count": "number",
                    "change_ns": "integer",
                }
            ],
        }
    ],
    "conditions": [{"name": "string", "base": "string", "candidate": "string", "text": "string"}],
    "warnings": ["string"],
    "thresholds": {
        "confidence": "number",
        "min_change": "number",
        "min_steps": "integer",
        "part_share": "number",
        "resamples": "integer",
        "seed": "integer",
    },
}
_CHOICES = {"verdict": Verdict, "match": Match, "basis": Basis}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_COLUMN = {"BIGINT": "integer", "INTEGER": "integer", "HUGEINT": "integer", "DOUBLE": "number", "BOOLEAN": "boolean"}


def analyze_schema() -> Schema:
    """The whole of it, as JSON Schema 2020-12."""
    built_in = {name: one for name, one in analyses().items() if one.built_in}
    return {
        "$schema": _DIALECT,
        "title": "tracekit analyze --format json",
        "type": "object",
        "required": ["schema", "trace", "results"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": JSON_SCHEMA},
            "trace": typed(TRACE),
            "results": {
                "type": "object",
                "properties": {name: {"$ref": f"#/$defs/{name}"} for name in built_in},
                "additionalProperties": {"$ref": "#/$defs/other"},
            },
        },
        "$defs": {
            "finding": _finding(),
            "coverage": typed({"explained_ns": "time", "total_ns": "time", "reason": "string"}),
            "other": _result({}, {"type": "object"}, {"type": "object"}),
            **{name: _of(name, one.sql, one.analysis.parameters) for name, one in built_in.items()},
        },
    }


def compare_schema() -> Schema:
    """That of a comparison."""
    schema = typed(COMPARISON)
    _choose(schema)
    return {"$schema": _DIALECT, "title": "tracekit compare --format json", **schema}


def _choose(schema: Schema) -> None:
    """Name the values of columns that have but a few."""
    for name, one in schema.get("properties", {}).items():
        if name in _CHOICES:
            schema["properties"][name] = {"enum": list(get_args(_CHOICES[name]))}
        _choose(one.get("items", one))


def _of(name: str, sql: str, parameters: Mapping[str, object]) -> Schema:
    (doc,) = (one for one in parse_macros(sql) if one.name == name)
    row: Schema = typed({column: f"{_kind(kind)}?" for column, (kind, _) in doc.columns.items()})
    for column, (_, meaning) in doc.columns.items():
        row["properties"][column]["description"] = meaning
    if name == "health":  # whose table is what it judged of its macro's counts
        row = typed({"check": "string", "status": "string", "count": "integer?", "detail": "string"})
    given = {key: "number" if isinstance(value, int | float) else "string?" for key, value in parameters.items()}
    return _result(typed(given), row, typed(SUMMARIES[name]))


def _result(parameters: Schema, row: Schema, summary: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["parameters", "summary", "table", "findings", "coverage"],
        "additionalProperties": False,
        "properties": {
            "parameters": {"type": "object"} | parameters,
            "summary": {"type": "array", "items": summary},
            "table": {"type": "array", "items": row},
            "findings": {"type": "array", "items": {"$ref": "#/$defs/finding"}},
            "coverage": {"$ref": "#/$defs/coverage"},
        },
    }


def _finding() -> Schema:
    finding = typed(FINDING)
    finding["properties"]["severity"] = {"enum": list(SEVERITIES)}
    finding["properties"]["id"] = {"type": "string", "pattern": r"^\w+\.\d+$"}
    return finding


def _kind(sql_type: str) -> str:
    return _COLUMN.get(sql_type, "string" if not sql_type.endswith("[]") else "list")


def typed(kind: object) -> Schema:
    """A shape in the notation of SUMMARIES as a schema; "time" is an integer that is not negative."""
    if kind is None:
        return {}
    if kind == "time":
        return {"type": "integer", "minimum": 0}
    if isinstance(kind, str):
        name = kind.removesuffix("?").replace("list", "array")
        return {"type": [name, "null"] if kind.endswith("?") else name}
    if isinstance(kind, Mapping) and ... in kind:
        return {"type": "object", "additionalProperties": typed(kind[...])}
    if isinstance(kind, Mapping):
        names = {name.removesuffix("?"): typed(one) for name, one in kind.items()}
        required = [name for name in kind if not name.endswith("?")]
        return {"type": "object", "required": required, "additionalProperties": False, "properties": names}
    assert isinstance(kind, Sequence)
    return {"type": "array", "items": typed(kind[0])}
