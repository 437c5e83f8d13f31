"""Tables as Nsight Compute prints them with --csv: rows in, text out."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
