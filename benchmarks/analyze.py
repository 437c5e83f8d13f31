"""How long does each analysis take on ten million events, as a multiple of just reading them?

    python -m benchmarks.analyze                       # 10 million events, three rounds
    python -m benchmarks.analyze --host-bound          # the same, with a gap before almost every kernel
    python -m benchmarks.analyze --events 1000000 --names idle_gaps attribution
    python -m benchmarks.analyze --parquet trace.parquet

A simulated trace of about so many events is written and converted, unless a Parquet file is given. Then, in interleaved
rounds, each in a fresh process with the file in the page cache:

* `scan`: DuckDB reads eight columns of all rows and adds them up: kind, name, ts, dur, device, stream, correlation and
  launch_id;
* `open`: `tracekit.open(file)`, which defines views and macros;
* `restep`: `tracekit.open(file, step_range=...)`, which writes the file again with other steps;
* each analysis: `tracekit.open(file).analyze(name)`, without the opening and the imports, but with all that the first
  analysis after it pays for (the steps are found, the kernels classified).

Seconds are medians. Memory is the largest sum, sampled every 20 ms, of the resident memory of the process and its
children. Nothing is asserted: the exit code is 0.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.processes import Usage, python
from tests.simulator import LLAMA_8B, TINY, Model, write_benchmark
from tracekit.registry import analyses

_SCAN = """
import sys, time
import duckdb
connection = duckdb.connect()
start = time.perf_counter()
connection.execute(
    "SELECT max(kind), sum(length(name)), sum(ts), sum(dur), sum(device), sum(stream), sum(correlation), "
    "sum(launch_id) FROM read_parquet($1)",
    [sys.argv[1]],
).fetchall()
print(time.perf_counter() - start)
"""
_OPEN = """
import sys, time
import tracekit.trace
start = time.perf_counter()
tracekit.open(sys.argv[1])
print(time.perf_counter() - start)
"""
_RESTEP = """
import sys, time
import tracekit.trace
start = time.perf_counter()
tracekit.open(sys.argv[1], step_range="generation_1[0-9]*[(]")
print(time.perf_counter() - start)
"""
_ANALYZE = """
import sys, time
import tracekit.trace
trace = tracekit.open(sys.argv[1])
start = time.perf_counter()
trace.analyze(sys.argv[2])
print(time.perf_counter() - start)
"""
_SECONDS_GOAL = 60.0  # "seconds, not minutes"


def measure(file: Path, names: Sequence[str], rounds: int) -> None:
    """Time the scan and the analyses of one file and print them."""
    programs = {"scan": (_SCAN, ""), "open": (_OPEN, ""), "restep": (_RESTEP, "")} | {
        name: (_ANALYZE, name) for name in names
    }
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    peak: defaultdict[str, int] = defaultdict(int)
    for _ in range(rounds):
        for name, (program, argument) in programs.items():
            usage: Usage = python("-c", program, str(file), argument)
            seconds[name].append(float(usage.output))
            peak[name] = max(peak[name], usage.peak_bytes)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    metadata = pq.ParquetFile(file).metadata
    megabytes = file.stat().st_size / 1e6
    print(f"\n{metadata.num_rows:,} events, {metadata.num_row_groups} row groups, {megabytes:,.0f} MB of Parquet")
    print(f"{'':18}{'seconds':>9}{'x scan':>9}{'peak MB':>9}")
    for name, value in median.items():
        print(f"{name:18}{value:9.2f}{value / median['scan']:9.1f}{peak[name] / 1e6:9,.0f}")
    slowest = max(names, key=lambda name: median[name])
    met = "met" if median[slowest] < _SECONDS_GOAL else "NOT met"
    print(f"goal: seconds, not minutes: {slowest} takes {median[slowest]:.1f} s, {met}")


def make(events: int, folder: Path, model: Model) -> Path:
    """A Parquet file of about so many events."""
    trace, file = folder / "trace.json", folder / "trace.parquet"
    write_benchmark(trace, events, model=model)
    python("-m", "tracekit", "convert", str(trace), "-o", str(file))
    trace.unlink()
    return file


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analyze", description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", nargs="+", default=list(analyses()), metavar="NAME", help="analyses to time")
    parser.add_argument("--host-bound", action="store_true", help="a tiny model: the device waits for the host")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="use this file instead of making one")
    parser.add_argument("--folder", type=Path, help="where the trace is made (400 bytes an event)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-", dir=options.folder) as name:
        file = options.parquet or make(options.events, Path(name), TINY if options.host_bound else LLAMA_8B)
        measure(file, options.names, options.rounds)


if __name__ == "__main__":
    main()
