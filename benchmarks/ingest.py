"""How fast, and with how much memory, does a trace become a Parquet file, compared with just parsing its JSON?

    python -m benchmarks.ingest                              # 1 MB, 140 MB and 1 GB, three rounds
    python -m benchmarks.ingest --megabytes 140 --rounds 5 --gz
    python -m benchmarks.ingest --megabytes 140 --big 3000   # and one of 3 GB, with tracekit alone

In interleaved rounds, each in a fresh process, over one simulated, pretty-printed trace per size:

* `orjson`: `orjson.loads(open(file, "rb").read())`, with Python's garbage collector on, as anyone would call it;
* `orjson, gc off`: the same after `gc.disable()`;
* `convert`: `tracekit.convert.convert([file], out)`: parsed, linked, checked, written;
* `convert gz`: the same of the file as .gz;
* `command`: `tracekit convert file -o out.parquet`, as a user types it.

orjson and convert are timed inside their processes, so that starting Python and imports cost neither anything; the
command from outside, with start, imports and exit. The file is in the page cache for all. Memory is the kernel's
peak of the process, or the largest sampled sum of it and its children; pages of the spool that are mapped into memory
count. Seconds are medians, ratios are medians of the ratios within one round; "CPU s" are those of all cores,
which other work on the machine stretches less. tracekit uses two cores and more, so a busy machine holds it back more
than it does orjson. Nothing is asserted: the exit code is 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.processes import Usage, python
from tests.simulator import events_for, write_benchmark

_ORJSON = """
import gc, sys, time
import orjson
if sys.argv[2] == "off":
    gc.disable()
start = time.perf_counter()
document = orjson.loads(open(sys.argv[1], "rb").read())
print(time.perf_counter() - start, flush=True)
import os; os._exit(0)
"""
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
_RATIO_GOALS = {140: 0.6, 1000: 0.5}  # of the time of orjson with the garbage collector on, by megabytes
_GZ_GOAL = 1.1
_SMALL_GOAL_SECONDS = 1.0
_MEMORY_GOAL_BYTES = 900_000_000


@dataclass(slots=True)
class Case:
    """One way to read the file, and what each round took."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def add(self, usage: Usage, seconds: float | None = None) -> None:
        """Note one round; `seconds` if the process timed itself."""
        self.seconds.append(usage.seconds if seconds is None else seconds)
        self.cpu_seconds.append(usage.cpu_seconds)
        self.peak_bytes = max(self.peak_bytes, usage.peak_bytes)

    def ratio(self, other: Case) -> float:
        """The median over the rounds of this case's time by the other's."""
        return statistics.median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))


def command(file: Path, out: Path) -> Usage:
    """One conversion, by the command that a user types."""
    out.unlink(missing_ok=True)
    return python("-m", "tracekit", "convert", str(file), "-o", str(out))


def convert(file: Path, out: Path, case: Case) -> None:
    """One conversion, timed in its process."""
    out.unlink(missing_ok=True)
    usage = python("-c", _CONVERT, str(file), str(out))
    case.add(usage, float(usage.output))


def compare(megabytes: int, rounds: int, folder: Path, *, gz: bool, yardstick: bool = True) -> None:
    """Time all cases on one file of about that size and print them."""
    file, zipped, out = folder / "trace.json", folder / "zipped.json.gz", folder / "out.parquet"
    size = events_for(megabytes, "kineto")
    write_benchmark(file, size, "kineto")
    if gz:
        write_benchmark(zipped, size, "kineto", compress="gz")
    loaded, loaded_gc_off = Case("orjson"), Case("orjson, gc off")
    plain, compressed, typed = Case("convert"), Case("convert gz"), Case("command")
    _warm(file)
    busy = f"load on {os.cpu_count()} cores before the start: {os.getloadavg()[0]:.1f}"
    for _ in range(rounds):
        if yardstick:
            for case, collector in ((loaded, "on"), (loaded_gc_off, "off")):
                usage = python("-c", _ORJSON, str(file), collector)
                case.add(usage, float(usage.output))
        convert(file, out, plain)
        if gz:
            convert(zipped, out, compressed)
        typed.add(command(file, out))
    events = pq.ParquetFile(out).metadata.num_rows
    size_mb, each = file.stat().st_size / 1e6, out.stat().st_size / events
    print(f"\n{size_mb:,.0f} MB, {events:,} events stored in {each:.1f} bytes each; {busy}")
    print(
        f"{'':16}{'seconds':>9}{'x orjson':>10}{'x gc off':>10}{'x plain':>9}{'CPU s':>8}{'peak MB':>9}{'events/s':>12}"
    )
    cases = [case for case in (loaded, loaded_gc_off, plain, compressed, typed) if case.seconds]
    for case in cases:
        by_orjson = f"{case.ratio(loaded):.2f}" if yardstick else "-"
        by_gc_off = f"{case.ratio(loaded_gc_off):.2f}" if yardstick else "-"
        by_plain = f"{case.ratio(plain):.2f}" if case is compressed else ""
        seconds = statistics.median(case.seconds)
        cpu = statistics.median(case.cpu_seconds)
        rate = f"{events / seconds:,.0f}" if case in (plain, compressed, typed) else ""
        ratios = f"{by_orjson:>10}{by_gc_off:>10}{by_plain:>9}"
        print(f"{case.name:16}{seconds:9.2f}{ratios}{cpu:8.2f}{case.peak_bytes / 1e6:9,.0f}{rate:>12}")
    _judge(megabytes, loaded, plain, compressed, typed)
    for path in (file, zipped, out):
        path.unlink(missing_ok=True)


def _judge(megabytes: int, loaded: Case, plain: Case, compressed: Case, typed: Case) -> None:
    if loaded.seconds and megabytes in _RATIO_GOALS:
        _goal("convert / orjson", plain.ratio(loaded), _RATIO_GOALS[megabytes])
    if compressed.seconds and megabytes > 1:
        _goal("gz / plain", compressed.ratio(plain), _GZ_GOAL)
    if megabytes <= 1:
        _goal("seconds of the command", statistics.median(typed.seconds), _SMALL_GOAL_SECONDS)
    _goal("peak MB", max(plain.peak_bytes, compressed.peak_bytes, typed.peak_bytes) / 1e6, _MEMORY_GOAL_BYTES / 1e6)


def _goal(what: str, value: float, limit: float) -> None:
    digits = 0 if limit >= 100 else 2
    print(f"goal: {what} <= {limit:g}: {value:.{digits}f}, {'met' if value <= limit else 'NOT met'}")


def _warm(file: Path) -> None:
    with file.open("rb") as data:
        while data.read(1 << 24):
            pass


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[1, 140, 1000], metavar="N", help="sizes to compare"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gz", action="store_true", help="convert the file as .gz too")
    parser.add_argument("--big", type=int, metavar="N", help="one more size in MB, for tracekit alone, one round")
    parser.add_argument("--folder", type=Path, help="where the files are made (up to 1.5 times the largest size)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-", dir=options.folder) as name:
        for megabytes in options.megabytes:
            compare(megabytes, options.rounds, Path(name), gz=options.gz)
        if options.big:
            compare(options.big, 1, Path(name), gz=options.gz, yardstick=False)


if __name__ == "__main__":
    main()
