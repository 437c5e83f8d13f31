"""`tracekit collect --profiler nsys` where it ends otherwise than it should: signals, and parts of nsys killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.collecting import capture_of, collect, control, runs, start, stop, write
from tests.nsys_runs import MARKED, NSYS, needs_nsys, nsys, nvtx_folder, processes_with, sessions, steps_in, wait_for
from tracekit.collectors._nsys_tool import find_nsys

pytestmark = needs_nsys


def start_marked(
    folder: Path, *options: str, seconds: str = "60", text: str = MARKED
) -> tuple[subprocess.Popen[str], int]:
    """The collector and the program, which has said its pid."""
    write(folder / "marked.py", text)
    (folder / "tmp").mkdir()
    process = start(
        folder, *NSYS, "--trace", "nvtx", *options, "--", sys.executable, "marked.py", seconds, "0",
        PYTHONPATH=nvtx_folder(), TMPDIR=str(folder / "tmp"),
    )  # fmt: skip
    (program,) = [pid for pid in processes_with("marked.py") if within(pid, process.pid) and named(pid)]
    return process, program


def within(pid: int, above: int) -> bool:
    """Whether a process is below another; those of other tests may end meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while pid > 1 and pid != above:
            pid = parent(pid)
    return pid == above


def named(pid: int) -> bool:
    """Whether it is the program itself, and not what has its command as arguments."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == b"marked.py"
    return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def leftovers(folder: Path) -> list[str]:
    """What is left where nsys keeps its files, but for what it keeps for all its sessions."""
    return [path.name for path in (folder / "tmp").iterdir() if path.name.startswith(("nsys", "injection", "tmp"))]


@pytest.mark.parametrize(
    ("number", "group", "code"), [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)], ids=["Ctrl-C", "kill"]
)
def test_stopped_by_signal_keeps_the_trace(tmp_path: Path, number: signal.Signals, group: bool, code: int) -> None:
    process, program = start_marked(tmp_path)
    ended, said = stop(process, number, group=group)
    assert ended == code, said
    assert said.count("KeyboardInterrupt\n") == (number == signal.SIGINT)
    assert said.startswith("The report is written first; then the program is asked to stop.\n")
    assert f"Stopped by {number.name}; the program exited with status {code}.\n" in said
    assert (tmp_path / "trace.parquet").exists(), said
    assert steps_in(tmp_path / "trace.parquet") > 0
    assert not runs(program)


def test_asked_to_stop_as_soon_as_the_program_begins(tmp_path: Path) -> None:
    """The report is written first even then. The program asks itself: nobody else would be so quick."""
    write(
        tmp_path / "marked.py",
        """
        import os, signal, sys, time
        from pathlib import Path
        pid = os.getpid()
        while b"collect" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\\0"):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGINT)
        import nvtx
        while True:
            with nvtx.annotate("tracekit.step[decode decode_requests=4 decode_tokens=4]"):
                time.sleep(0.005)
        """,
    )
    done = collect(
        tmp_path, *NSYS, "--trace", "nvtx", "--", sys.executable, "marked.py", PYTHONPATH=nvtx_folder()
    )  # fmt: skip
    assert done.returncode in (5, 130), done.stderr  # 5 if not even a step had begun
    assert done.stderr.startswith("The report is written first; then the program is asked to stop.\n"), done.stderr
    assert done.stderr.count("KeyboardInterrupt\n") == 1


def test_second_interrupt_gives_up_and_leaves_nothing_but_the_sessions_of_others(tmp_path: Path) -> None:
    other = f"other-{os.getpid()}"
    nsys("start", f"--session-new={other}", "--sample=none", "--cpuctxsw=none", f"--output={tmp_path / 'other'}")
    deaf = MARKED.replace("seconds, status", "signal.signal(signal.SIGINT, signal.SIG_IGN)\n    seconds, status")
    process, program = start_marked(tmp_path, text=deaf)
    os.kill(process.pid, signal.SIGINT)
    wait_for((tmp_path / "trace.parquet").exists)
    ended, said = stop(process, signal.SIGINT)
    assert (ended, said.splitlines()[-1]) == (130, "Given up; the program was killed.")
    wait_for(lambda: not runs(program))
    wait_for(lambda: f"tracekit-{process.pid}-" not in sessions())
    assert not processes_with(f"--session-name=tracekit-{process.pid}-")
    assert (other in sessions(), leftovers(tmp_path)) == (True, [])
    nsys("shutdown", f"--session={other}")


def test_nsys_is_killed_and_the_program_goes_on(tmp_path: Path) -> None:
    """Its agent has the events; the program is followed, and its signals are passed on as before."""
    process, program = start_marked(tmp_path)
    os.kill(parent(parent(program)), signal.SIGKILL)
    wait_for(lambda: "nsys" not in Path(f"/proc/{parent(parent(program))}/cmdline").read_text())
    assert process.poll() is None
    assert runs(program)
    ended, said = stop(process, signal.SIGTERM)
    assert not runs(program)
    assert "nsys was ended by SIGKILL while the program runs; the program is followed to its end" in said
    assert steps_in(tmp_path / "trace.parquet") > 0
    assert (ended, capture_of(tmp_path / "trace.parquet")["partial"]) == (
        5,
        ["a process could not do all that was asked"],
    )
    assert leftovers(tmp_path) == []


@pytest.mark.slow  # a killed agent may leave a state behind in which no other nsys starts, those of other tests neither
def test_nsys_is_killed_with_its_agent(tmp_path: Path) -> None:
    process, program = start_marked(tmp_path, seconds="3")
    (agent,) = processes_with(f"--session-name=tracekit-{process.pid}-")
    for pid in (parent(parent(program)), agent):  # nsys would end by itself without its agent
        os.kill(pid, signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert "nsys left no report: it was killed, and what it had recorded is lost with it" in said
    assert (process.returncode, leftovers(tmp_path)) == (5, [])
    assert not (tmp_path / "trace.parquet").exists()


def test_nsys_that_does_not_finish_is_not_waited_for_beyond_the_limit(tmp_path: Path) -> None:
    """It is stopped here, as when it hangs; the program ends by itself. Its agent may have written the report."""
    process, program = start_marked(tmp_path, "--timeout", "3")
    os.kill(parent(parent(program)), signal.SIGSTOP)
    (tmp_path / "end").touch()
    said = process.communicate(timeout=60)[1]
    assert "nsys had not finished 3 s after the program ended, and was ended, too: with what status the program" in said
    assert (process.returncode, runs(program), leftovers(tmp_path)) == (5, False, [])


def test_window_that_is_open_when_the_program_ends(tmp_path: Path) -> None:
    process, program = start_marked(tmp_path, "--paused")
    assert control(tmp_path, "start", "--session", str(process.pid))[0] == 0
    os.kill(program, signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 137
    assert "The program exited with status 137.\n" in said
    assert steps_in(tmp_path / "trace.parquet") > 0


def test_try_that_failed_leaves_no_session(tmp_path: Path) -> None:
    """Its agent would hold the program's output open, and who reads that would never come to its end."""
    nsys = find_nsys()
    assert nsys is not None
    assert nsys.importer is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "host-here").symlink_to(nsys.importer.parent)
    fails_once = write(
        tmp_path / "bin" / "nsys",
        f"""
        #!/bin/sh
        if [ "$1" = profile ] && [ ! -e {tmp_path}/session ]; then
            echo "${{2#*=}}" > {tmp_path}/session
            {nsys.path} start "$2" --sample=none --cpuctxsw=none --output={tmp_path}/never
            exit 1
        fi
        exec {nsys.path} "$@"
        """,
    )
    fails_once.write_text(fails_once.read_text().lstrip())
    fails_once.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = collect(tmp_path, *NSYS, "--", sys.executable, "-c", "print('said')", PATH=path)
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr
    session = (tmp_path / "session").read_text().strip()
    assert session.startswith("tracekit-")
    assert not processes_with(session)


def test_nsys_that_does_not_run_the_program(tmp_path: Path) -> None:
    """Nothing is said of the program, which never ran."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "nvidia").touch()  # where nsys wants a folder
    done = collect(tmp_path, *NSYS, "--paused", "--", "echo", "ran", TMPDIR=str(tmp_path / "tmp"))
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("tracekit: nsys did not run the program. It said: ")


def test_folder_for_temporary_files_that_nsys_cannot_use(tmp_path: Path) -> None:
    done = collect(tmp_path, *NSYS, "--", "echo", "ran", TMPDIR="tmp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: TMPDIR is tmp, and nsys needs a folder there that it can write to")
