"""The Parquet footer of a trace: what was read, from where, and what became of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1
KEY = b"tracekit"


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One trace file as read.

    rank_from: "distributedInfo", "file name", "process label", "process id" (the file of another profiler has this
    process, too), "MPI", "collector" (it gave one), "default" or "assigned" (two files without a rank met).
    base_ns: Unix time in ns to which the file's timestamps were added; 0 where they were absolute already.
    truncated_at: byte (after decompression) up to which events are whole, None if the file is complete.
    """

    path: str
    format: str
    rank: int
    rank_from: str = "default"
    world_size: int | None = None
    size_bytes: int = 0
    base_ns: int = 0
    truncated_at: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as the profiled process saw it; `properties` as recorded (bytes, counts)."""

    rank: int
    device: int
    name: str
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where every event went: read = stored + the sum of skipped. Counts are events unless said.

    repaired: events kept after a repair (which one -> how many).
    dropped_args: names of arguments that are not stored (name -> events seen with it in the sampled part).
    notes: what else was counted while linking. ignored_files: why files of a directory were passed over.
    """

    read: int = 0
    stored: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    dropped_args: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    ignored_files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Footer:
    """The whole of it. `origin_ns` is the Unix time of ts 0, or of an unknown epoch if the source had none.

    capture: settings of the profiler, and what the collector knows of the recording. step_rules: version of the rules
    by which the column `step` was filled (0: it was not), step_range: and what annotations the user called steps.
    """

    sources: tuple[SourceInfo, ...]
    devices: tuple[DeviceInfo, ...]
    origin_ns: int
    capture: dict[str, Any]
    ledger: Ledger
    schema: int = SCHEMA_VERSION
    tracekit: str = ""
    step_rules: int = 0
    step_range: str | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks present, ascending."""
        return tuple(sorted({source.rank for source in self.sources}))

    @property
    def partial(self) -> tuple[str, ...]:
        """Why less was recorded than was asked for, as the collector said it; empty if it was all."""
        return tuple(map(str, self.capture.get("partial") or ()))

    def to_bytes(self) -> bytes:
        """JSON, as stored under the footer key `tracekit`."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Footer:
        """The reverse of `to_bytes`."""
        value = json.loads(data)
        return cls(
            sources=tuple(SourceInfo(**source) for source in value["sources"]),
            devices=tuple(DeviceInfo(**device) for device in value["devices"]),
            origin_ns=value["origin_ns"],
            capture=value["capture"],
            ledger=Ledger(**value["ledger"]),
            schema=value["schema"],
            tracekit=value["tracekit"],
            step_rules=value.get("step_rules", 0),
            step_range=value.get("step_range"),
        )
