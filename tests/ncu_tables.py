"""Tables as Nsight Compute prints them with --csv, rows in, text out; and traces of the kernels in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import footer_of, kernel, write_trace
from tracekit.analysis import Result
from tracekit.footer import DeviceInfo
from tracekit.trace import Trace

ABOUT = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
DETAILS = (*ABOUT, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULES = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DURATION = "gpu__time_duration.sum"
WAVES = "launch__waves_per_multiprocessor"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
UNITS = {DURATION: "nsecond", READ: "byte", WRITTEN: "byte", SM: "%", MEMORY: "%", WAVES: ""}
VALUES = ("1000", "600", "400", "70", "50", "2.5")
SHAPE = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 32, "block_y": 4, "block_z": 1}
GRID, BLOCK = "(8, 1, 1)", "(32, 4, 1)"


@dataclass(frozen=True, slots=True)
class Launch:
    """One measured launch."""

    kernel: str
    id: int = 0
    grid: str = "(1, 1, 1)"
    block: str = "(32, 1, 1)"
    cc: str = "9.0"
    device: str = "0"
    process: str = "7"

    def cells(self) -> tuple[str, ...]:
        about = (str(self.id), self.process, "python", "127.0.0.1", self.kernel, "1", "7")
        return (*about, self.block, self.grid, self.device, self.cc)


def quoted(rows: Sequence[Sequence[str]]) -> str:
    """All fields in quotes, as ncu does."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def details(*rows: tuple[Launch, str, str, str, str]) -> str:
    """A details page. rows: launch, section, label, unit, value; the last column of a metric's row is empty."""
    return quoted([(*DETAILS, *RULES), *((*launch.cells(), *cells, "") for launch, *cells in rows)])


def raw(units: Mapping[str, str], *rows: tuple[Launch, Sequence[str]]) -> str:
    """A raw page: units by metric, and the values of each launch."""
    about = [""] * len(ABOUT)
    values = [(*launch.cells(), *cells) for launch, cells in rows]
    return quoted([(*ABOUT, *units), (*about, *units.values()), *values])


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# ---- beside a trace --------------------------------------------------------------------------------------------------


def measured(name: str, *values: str, **about: Any) -> tuple[Launch, Sequence[str]]:
    """A launch of SHAPE, and what was measured of it in the order of UNITS; VALUES if nothing is given."""
    return Launch(name, **{"grid": GRID, "block": BLOCK, **about}), values or VALUES


def work(ts: int, dur: int, name: str, **columns: Any) -> dict[str, Any]:
    """The row of a kernel of SHAPE."""
    return kernel(ts, dur, name=name, **{**SHAPE, **columns})


def opened(
    path: Path, rows: Sequence[dict[str, Any]], page: str | None, capability: tuple[int, int] | None = None
) -> Trace:
    """A trace, with a table of counters or without. capability: of all its devices; None: it does not say."""
    footer = footer_of(rows)
    if capability is not None:
        major, minor = capability
        properties = {"computeMajor": major, "computeMinor": minor}
        devices = tuple(DeviceInfo(one.rank, one.device, one.name, properties) for one in footer.devices)
        footer = footer_of(rows, devices=devices)
    files = [] if page is None else [write(path / "metrics.csv", page)]
    return tracekit.open(write_trace(path / "trace.parquet", rows, footer), ncu=files)


def analyze(path: Path, rows: Sequence[dict[str, Any]], page: str | None, **parameters: Any) -> Result:
    """The analysis of such a trace."""
    with opened(path, rows, page) as trace:
        return trace.analyze("counters", **parameters)
