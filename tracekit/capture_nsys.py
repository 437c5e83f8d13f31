"""The windows that Nsight Systems recorded become files: each report is opened and counted, whatever nsys says."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture_files import CaptureFiles, Wanted, redacted_command
from tracekit.capture_gates import Missing, ended_badly, not_done, why_empty
from tracekit.capture_nsys_gates import (
    device_missing,
    not_in_report,
    steps_missing,
    time_missing,
    why_no_report,
    why_nothing,
)
from tracekit.capture_summary import overhead, seconds_text, table
from tracekit.collectors._nsys_command import NsysSettings
from tracekit.collectors._nsys_session import NsysSession
from tracekit.collectors._nsys_tool import Nsys, import_stream
from tracekit.collectors._session import Session
from tracekit.collectors._windows import Plan, StepTimes, Window
from tracekit.secrets import redact

_GPUS = ("/dev/nvidia[0-9]*", "/dev/dxg")
# Options whose values may go into the file; of others, such as --env-var, only the name.
_TOLD = re.compile(
    r"--(sample|cpuctxsw|sampling-period|samples-per-backtrace|backtrace|gpu-metrics-[\w-]+|gpuctxsw|cudabacktrace|"
    r"cuda-(?:flush-interval|memory-usage|um-[\w-]+|event-trace)|osrt-threshold|pytorch|python-[\w-]+)=[\w.,:-]{1,40}"
)
_PROCESSES = """
    SELECT
        host.pid AS pid,
        min(host.rank) AS rank,
        count(*) AS events,
        count(*) FILTER (host.kind NOT IN ('os', 'overhead')) AS told,
        count(DISTINCT host.step) FILTER (host.kind = 'annotation') AS steps,
        coalesce(sum(work.rows), 0)::BIGINT AS device
    FROM events AS host
    LEFT JOIN (
        SELECT launch_id, count(*) AS rows FROM device_activity WHERE launch_id IS NOT NULL GROUP BY launch_id
    ) AS work ON work.launch_id = host.id
    WHERE host.pid IS NOT NULL
    GROUP BY host.pid
    ORDER BY host.pid
"""
_KINDS = "SELECT kind, count(*) AS rows FROM events GROUP BY kind ORDER BY rows DESC, kind"
_TIME = "SELECT (max(ts + coalesce(dur, 0)) - min(ts)) / 1e9 AS seconds FROM events"
_LAUNCHES = """
    SELECT count(*) AS n
    FROM launches
    WHERE regexp_matches(name, 'launch', 'i') AND NOT regexp_matches(name, 'hostfunc', 'i')
"""
_STEPS = "SELECT coalesce(max(steps), 0) AS n FROM (SELECT rank, count(*) AS steps FROM steps GROUP BY rank)"


@dataclass(frozen=True, slots=True)
class _Row:
    """One process in the report, by what its threads did; device: what those launched; told: without the system's calls
    and the profiler's own work.
    """

    pid: int
    rank: int
    events: int
    told: int
    device: int
    steps: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is in a file. kinds: rows by kind, most first; steps: of the rank with most; seconds: from first to last."""

    processes: tuple[_Row, ...]
    kinds: dict[str, int]
    steps: int
    launches: int
    seconds: float


class NsysFiles(CaptureFiles):
    """Makes the files of one capture by nsys. reports: the folder that it writes to."""

    def __init__(
        self,
        wanted: Wanted,
        plan: Plan,
        folder: Path,
        say: Callable[[str], None],
        *,
        settings: NsysSettings,
        nsys: Nsys,
        reports: Path,
    ) -> None:
        super().__init__(wanted, plan, folder, say)
        self.settings, self.nsys, self.reports = settings, nsys, reports

    def raw_of(self, window: Window) -> list[Path]:
        """The report of a window, which holds the program's environment, too."""
        return sorted(self.reports.glob(f"window-{window.number}.*"))

    def _deliver(self, window: Window, session: Session) -> tuple[str | None, str | None]:
        assert isinstance(session, NsysSession)
        report = session.run.report(window.number)
        if report is None:
            return self._why_no_report(window, session), None
        if report.suffix == ".qdstrm":
            stream, report = report, report.with_suffix(".nsys-rep")
            import_stream(stream, report)
            stream.unlink()
        draft = self.folder / f"draft-{window.number}.parquet"
        counted, missing = self._convert_report(window, session, report, draft)
        if not counted.kinds.keys() - {"overhead"}:
            trace = session.run.commands.trace
            unseen = [one.text for one in steps_missing(window, 0, trace)]
            return "; ".join(unseen) or why_nothing(trace), None
        for line in self._summary(window, session, counted):
            self.say(line)
        return self._put(window, draft, missing)

    def _why_no_report(self, window: Window, session: NsysSession) -> str:
        ended = "" if session.outcome is None else ended_badly(session.outcome)
        if window.number in session.troubles:
            why = session.troubles[window.number]
        elif window.first is None:  # no process came to a step
            seen, met = session.folder.seen(), len(session.met)
            return why_empty(window, seen=seen, met=met, plan=self.plan, named=ended)
        else:
            run = session.run
            why = why_no_report(run.said(), killed=run.killed, late_s=run.timeout if run.late else None)
        return f"{ended}; {why}" if ended else why

    def _convert_report(
        self, window: Window, session: NsysSession, report: Path, draft: Path
    ) -> tuple[_Counted, list[Missing]]:
        """Convert, and once more if the file shows that something is missing, so that it says so."""
        from tracekit.convert import convert

        missing = not_done(session.unhooked if session.ended else (), len(session.complaints))
        of_all = len(missing)  # told at the end
        for _ in range(2):
            capture = self._facts(window, session, missing)
            convert([report], draft, force=True, allow_partial=True, capture=capture)
            counted = _count(draft)
            found = self._missing(window, session, counted)
            if not found or missing[of_all:] == found:
                break
            missing = [*missing[:of_all], *found]
        return counted, missing[of_all:]

    def _missing(self, window: Window, session: NsysSession, counted: _Counted) -> list[Missing]:
        trace = session.run.commands.trace
        missing = not_in_report(window, {row.pid for row in counted.processes})
        missing += steps_missing(window, counted.steps, trace)
        missing += time_missing(window, counted.seconds, self.plan)
        device = sum(counted.kinds.get(kind, 0) for kind in ("kernel", "graph"))
        if not device:
            traced, has_gpu = "cuda" in trace, any(map(glob.glob, _GPUS))
            calls = counted.kinds.get("launch", 0)
            missing += device_missing(counted.launches, calls, traced=traced, has_gpu=has_gpu)
        return missing

    def _facts(self, window: Window, session: NsysSession, missing: Sequence[Missing]) -> dict[str, object]:
        """What the file is to say of its recording. No names, no paths, no environment."""
        commands = session.run.commands
        capture: dict[str, object] = {
            "profiler": "nsys",
            "profiler_version": self.nsys.text,
            "trace": list(commands.trace),
            "cuda_graph_trace": self.settings.cuda_graph_trace or "default",
            "options": [
                option if _TOLD.fullmatch(option) else option.partition("=")[0] for option in self.settings.options
            ],
            "window": {
                "delay_s": self.plan.delay,
                "steps": window.steps,
                "warmup": window.warmup,
                "ended_by": [window.closed],
            },
            "processes": [
                {
                    "pid": attempt.process.pid,
                    "rank": None if attempt.counted is None else attempt.counted.rank,
                    "steps": 0 if attempt.counted is None else attempt.counted.steps,
                    "torch": redact(attempt.process.torch),
                }
                for attempt in window.attempts.values()
            ],
            "partial": [one.stored for one in missing],
            "overhead": [
                {"step": redact(times.step), "recorded": [times.recorded, times.recorded_ns]}
                | {"plain": [times.plain, times.plain_ns]}
                for times in _overhead(window)
            ],
        }
        if self.wanted.command is not None:
            capture["command"] = redacted_command(self.wanted.command)
        return capture

    def _summary(self, window: Window, session: NsysSession, counted: _Counted) -> list[str]:
        known = {process.pid: str(process) for process in session.met}
        begin = f"Window {window.number}: recorded" if window.number > 1 else "Recorded"
        count = len(counted.processes)
        rows = [
            (
                known.get(row.pid, f"process ({row.pid})"),
                str(row.rank),
                f"{row.events:,}",
                f"{row.device:,}",
                f"{row.steps:,}",
            )
            for row in counted.processes
            if row.told or row.pid in known
        ]
        return [
            f"{begin} {count} process{'es' if count != 1 else ''} for {seconds_text(counted.seconds)}: "
            f"nsys {self.nsys.text}, {' and '.join(session.run.commands.trace)}.",
            *(table(("process", "rank", "events", "device", "steps"), rows) if rows else ()),
            *_of_little_interest(count - len(rows)),
            "Rows: " + ", ".join(f"{kind} {rows:,}" for kind, rows in counted.kinds.items()) + ".",
            *overhead(_overhead(window), counted.steps),
        ]


def _of_little_interest(count: int) -> list[str]:
    """Scripts start many a short process."""
    return [f"  {count:,} process{'es' if count != 1 else ''} with calls into the system alone"] if count else []


def _overhead(window: Window) -> list[StepTimes]:
    return [
        times
        for attempt in window.attempts.values()
        if attempt.counted is not None
        for times in attempt.counted.overhead
    ]


def _count(trace: Path) -> _Counted:
    import tracekit

    with tracekit.open(trace) as opened:
        kinds = {row["kind"]: row["rows"] for row in opened.sql(_KINDS).to_pylist()}
        return _Counted(
            processes=tuple(
                _Row(row["pid"], row["rank"], row["events"], row["told"], row["device"], row["steps"])
                for row in opened.sql(_PROCESSES).to_pylist()
            ),
            kinds=kinds,
            steps=int(opened.sql(_STEPS).to_pylist()[0]["n"]),
            launches=int(opened.sql(_LAUNCHES).to_pylist()[0]["n"]),
            seconds=float(opened.sql(_TIME).to_pylist()[0]["seconds"] or 0.0) if kinds else 0.0,
        )
