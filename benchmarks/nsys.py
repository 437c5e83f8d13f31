"""How fast, and with how much memory and disk, does an export of Nsight Systems become a Parquet file, compared with
reading its rows one by one in Python?

    python -m benchmarks.nsys                             # 100 MB and 1 GB, three rounds
    python -m benchmarks.nsys --megabytes 200 --rounds 5
    python -m benchmarks.nsys --megabytes 1000 --big 2000 # and one of 2 GB, with tracekit alone

In interleaved rounds, each in a fresh process, over one made export per size:

* `rows`: `benchmarks.nsys_naive`: a loop over the cursor, a dict a row, as scripts do it;
* `convert`: `tracekit.convert.convert([file], out)`: read, linked, ordered, steps found, written;
* `command`: `tracekit convert file -o out.parquet`, as a user types it.

All but the command are timed inside their processes, so that starting Python and imports cost nothing; the command from
outside, from start to exit. The file is in the page cache for all. Memory and CPU time are those of
`benchmarks.processes`; "disk MB" is the most that lay beside the output while it was made, the output included. Seconds
are medians, ratios medians of the ratios within a round. Nothing is asserted: the exit code is 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.nsys_export import write_export
from benchmarks.processes import Usage, python

_CONVERT = """
import sys, time
from pathlib import Path
from tracekit.convert import convert
from tracekit.registry import readers
readers()
start = time.perf_counter()
convert([Path(sys.argv[1])], Path(sys.argv[2]))
print(time.perf_counter() - start, flush=True)
"""
_RATE_GOAL = 3.0  # times the rate of the rows one by one
_MEMORY_GOAL_BYTES = 900_000_000  # at up to 1 GB; links take some 16 bytes an event
_SAMPLE_SECONDS = 0.1


@dataclass(slots=True)
class Case:
    """One way to read the file, and what each round took."""

    name: str
    arguments: tuple[str, ...]
    timed_inside: bool = True
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    disk_bytes: int = 0

    def run(self, file: Path, folder: Path) -> None:
        """One round, with the folder to itself."""
        out = folder / "out.parquet"
        out.unlink(missing_ok=True)
        places = {"FILE": str(file), "OUT": str(out)}
        with _most_on_disk(folder) as most:
            usage: Usage = python(*(places.get(word, word) for word in self.arguments))
        self.seconds.append(float(usage.output) if self.timed_inside else usage.seconds)
        self.cpu_seconds.append(usage.cpu_seconds)
        self.peak_bytes = max(self.peak_bytes, usage.peak_bytes)
        self.disk_bytes = max(self.disk_bytes, *most)

    def times_faster(self, than: Case) -> float:
        """The median over the rounds of the other's time by this one's."""
        return statistics.median(its / mine for mine, its in zip(self.seconds, than.seconds, strict=True))


def cases() -> dict[str, Case]:
    """All of them, unused."""
    typed = ("-m", "tracekit", "convert", "FILE", "-o", "OUT")
    return {
        "rows": Case("rows", ("-m", "benchmarks.nsys_naive", "FILE", "OUT")),
        "convert": Case("convert", ("-c", _CONVERT, "FILE", "OUT")),
        "command": Case("command", typed, timed_inside=False),
    }


def compare(megabytes: int, rounds: int, folder: Path, *, yardstick: bool = True) -> None:
    """Time all cases on one export of about that size and print them."""
    file, work = folder / "serve.sqlite", folder / "work"
    work.mkdir()
    write_export(file, megabytes)
    found = cases()
    used = [case for name, case in found.items() if yardstick or name in {"convert", "command"}]
    _warm(file)
    busy = f"load on {os.cpu_count()} cores before the start: {os.getloadavg()[0]:.1f}"
    for _ in range(rounds):
        for case in used:
            case.run(file, work)
    out = work / "out.parquet"
    events = pq.ParquetFile(out).metadata.num_rows
    size = file.stat().st_size
    print(f"\n{size / 1e6:,.0f} MB, {events:,} events stored in {out.stat().st_size / events:.1f} bytes each; {busy}")
    print(f"{'':10}{'seconds':>9}{'MB/s':>8}{'x rows':>8}{'CPU s':>8}{'peak MB':>9}{'disk MB':>9}")
    for case in used:
        seconds, cpu = statistics.median(case.seconds), statistics.median(case.cpu_seconds)
        ratio = f"{case.times_faster(found['rows']):.2f}" if yardstick else "-"
        print(
            f"{case.name:10}{seconds:9.2f}{size / 1e6 / seconds:8.1f}{ratio:>8}{cpu:8.2f}"
            f"{case.peak_bytes / 1e6:9,.0f}{case.disk_bytes / 1e6:9,.0f}"
        )
    if yardstick:
        rate = found["convert"].times_faster(found["rows"])
        print(f"goal: convert / rows >= {_RATE_GOAL:g}: {rate:.2f}, {_met(rate >= _RATE_GOAL)}")
        peak = max(found[name].peak_bytes for name in ("convert", "command"))
        limit = f"{_MEMORY_GOAL_BYTES / 1e6:g}"
        print(f"goal: peak MB <= {limit}: {peak / 1e6:.0f}, {_met(peak <= _MEMORY_GOAL_BYTES)}")
    file.unlink()
    out.unlink()
    work.rmdir()


def _met(goal: bool) -> str:
    return "met" if goal else "NOT met"


@contextmanager
def _most_on_disk(folder: Path) -> Iterator[list[int]]:
    """Samples of the bytes in all files of the folder, as they lie on the disk, while something works in it."""
    samples = [0]
    over = threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_SECONDS):
            samples.append(_on_disk(folder))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        samples.append(_on_disk(folder))


def _on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # gone meanwhile
            continue
    return total


def _warm(file: Path) -> None:
    with file.open("rb") as data:
        while data.read(1 << 24):
            pass


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nsys", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000], metavar="N", help="sizes to compare")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--big", type=int, metavar="N", help="one more size in MB, for tracekit alone, one round")
    parser.add_argument("--folder", type=Path, help="where the files are made (up to twice the largest size)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-", dir=options.folder) as name:
        for megabytes in options.megabytes:
            compare(megabytes, options.rounds, Path(name))
        if options.big:
            compare(options.big, 1, Path(name), yardstick=False)


if __name__ == "__main__":
    main()
