"""`tracekit collect` on real programs: what they see and say must be what they would without it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from tracekit.cli import main
from tracekit.cli_collect import _convert
from tracekit.collectors import torch_profiler
from tracekit.collectors._child import Ended
from tracekit.collectors.torch_profiler import START, Program, Recording, parse_command
from tracekit.errors import UnknownFormatError, UsageError

pytest.importorskip("torch", reason="collect runs programs that import torch")

COLLECT = [sys.executable, "-c", "from tracekit.cli import main; main()", "collect"]
ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 120


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def run(command: Sequence[str], folder: Path, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run_plain(command: Sequence[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run what `MIRROR` is part of, without tracekit."""
    return run(command, folder, text, PLAIN="1")


def collect(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return run([*COLLECT, *arguments], folder, text)


def ranges(trace: Path) -> list[str]:
    """Names of the ranges recorded, in order of time."""
    query = "SELECT name FROM read_parquet(?) WHERE kind = 'annotation' ORDER BY ts"
    return [name for (name,) in duckdb.execute(query, [str(trace)]).fetchall()]


MIRROR = """
    import json, os, sys
    if "PLAIN" not in os.environ:  # the import takes seconds
        import torch
        with torch.profiler.record_function("seen"):
            torch.ones(2) + 1
    main = sys.modules["__main__"]
    print(json.dumps([sys.argv, sys.path, sys.orig_argv, __name__, __file__, main.__dict__ is globals()]))
    print(sys.stdin.read().upper(), file=sys.stderr)
"""


def test_script_sees_what_it_would_see_without(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "mirror.py", MIRROR)
    command = [sys.executable, "-W", "ignore", "sub/mirror.py", "--output", "x", "--api-key", "sk-verysecret0123456789"]
    plain = run_plain(command, tmp_path, "hello")
    collected = collect(tmp_path, "--keep-raw", "raw.json.gz", "--", *command, text="hello")
    assert collected.returncode == plain.returncode == 0, collected.stderr
    assert collected.stdout == plain.stdout
    said = collected.stderr.splitlines()
    assert said[:2] == ["HELLO", said[1]]
    assert said[1].startswith("Recorded mirror.py for ")
    assert said[2:] == ["Wrote trace.parquet", "Wrote raw.json.gz"]
    assert ranges(tmp_path / "trace.parquet") == ["seen"]
    with gzip.open(tmp_path / "raw.json.gz", "rt") as raw:
        assert json.load(raw)["traceEvents"]
    rows = duckdb.execute("SELECT * FROM read_parquet(?)", [str(tmp_path / "trace.parquet")]).fetchall()
    assert "verysecret" not in repr(rows) + collected.stderr
    assert b"verysecret" not in (tmp_path / "trace.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw.json.gz", "sub", "trace.parquet"]


def test_module_that_raises_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path / "package" / "__main__.py", MIRROR + "    1 / 0\n")
    command = [sys.executable, "-m", "package", "argument"]
    plain = run_plain(command, tmp_path)
    collected = collect(tmp_path, "-o", "t.parquet", "--", *command)
    assert collected.stdout == plain.stdout
    assert "ZeroDivisionError" in plain.stderr
    assert collected.stderr.startswith(plain.stderr)
    assert (plain.returncode, collected.returncode) == (1, 5)
    assert "-m package exited with status 1. The trace up to there is in t.parquet" in collected.stderr
    assert ranges(tmp_path / "t.parquet") == ["seen"]


def test_code_that_raises_shows_its_own_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "def f():\n    1 / 0\nf()"]
    plain = run(command, tmp_path)
    collected = collect(tmp_path, "--", *command)
    assert "ZeroDivisionError" in plain.stderr
    assert collected.stderr.startswith(plain.stderr)


def test_stacks_do_not_say_where_tracekit_is(tmp_path: Path) -> None:
    write(tmp_path / "serve.py", "import torch\ndef work():\n    return torch.ones(2) + 1\nwork()\n")
    collected = collect(tmp_path, "--stack", "--keep-raw", "raw.json", "--", sys.executable, "serve.py")
    assert collected.returncode == 0, collected.stderr
    raw = (tmp_path / "raw.json").read_text()
    assert '"serve.py(2): work"' in raw
    assert "<tracekit>(" in raw
    assert "_torch_bootstrap" not in raw


def test_records_until_the_last_thread_and_exit_handler(tmp_path: Path) -> None:
    write(
        tmp_path / "late.py",
        """
        import atexit, sys, threading, time
        import torch

        def work(name):
            with torch.profiler.record_function(name):
                torch.ones(2) + 1

        def worker():
            time.sleep(0.2)
            work("thread")

        atexit.register(work, "exit handler")
        threading.Thread(target=worker).start()
        work("main")
        sys.exit(7)
        """,
    )
    collected = collect(tmp_path, "--", sys.executable, "late.py")
    assert collected.returncode == 5
    assert "late.py exited with status 7" in collected.stderr
    assert ranges(tmp_path / "trace.parquet") == ["main", "thread", "exit handler"]


@pytest.fixture(autouse=True)
def signals_as_in_the_foreground() -> Iterator[None]:
    """A job in the background, and all it starts, ignores SIGINT; the programs recorded here are to end of it."""
    ignored = [number for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) if ignores(number)]
    for number in ignored:
        signal.signal(number, signal.default_int_handler)  # which a started program does not inherit
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def ignores(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


LOOP = """
    import signal, sys, time
    import torch
    for number in signal.SIGINT, signal.SIGTERM:
        if number.name in sys.argv[1:]:
            signal.signal(number, lambda got, frame: sys.exit(signal.Signals(got).name + " handled"))
    torch.ones(2) + 1
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


def stop(folder: Path, number: signal.Signals, *, group: bool, arguments: Sequence[str] = ()) -> tuple[int, str]:
    """Collect the endless loop, signal the collector or its whole group, and return its exit code and stderr."""
    write(folder / "loop.py", LOOP)
    with subprocess.Popen(
        [*COLLECT, "--", sys.executable, "loop.py", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (os.killpg if group else os.kill)(process.pid, number)
        try:
            _, said = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and the program with it: a failure, not a hang
            raise
    return process.returncode, said


@pytest.mark.parametrize(
    ("number", "group", "ending"),
    [
        (signal.SIGINT, True, "KeyboardInterrupt"),
        (signal.SIGTERM, False, "the program was ended by SIGTERM"),
    ],
)
def test_stopped_by_signal_keeps_the_trace(tmp_path: Path, number: signal.Signals, group: bool, ending: str) -> None:
    code, said = stop(tmp_path, number, group=group)
    assert code == 0, said
    assert said.count("KeyboardInterrupt\n") == (number == signal.SIGINT)
    assert ending in said
    assert f"Stopped by {number.name}; the program was ended by {number.name}." in said
    assert "<tracekit>" not in said
    assert "<string>" not in said
    assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [str(tmp_path / "trace.parquet")]).fetchone()


ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_terminal_interrupt_reaches_the_program_once(tmp_path: Path) -> None:
    write(tmp_path / "loop.py", LOOP)
    with subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *COLLECT, "--", sys.executable, "loop.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\r\n"
        process.stdin.write(b"\x03")
        process.stdin.flush()
        said = process.stdout.read().decode()
    assert process.returncode == 0, said
    assert said.count("KeyboardInterrupt") == 1
    assert "Stopped by SIGINT; the program was ended by SIGINT." in said


def test_signal_handler_of_the_program_has_its_way(tmp_path: Path) -> None:
    code, said = stop(tmp_path, signal.SIGTERM, group=True, arguments=["SIGTERM"])
    assert code == 0, said
    assert "SIGTERM handled" in said
    assert "Stopped by SIGTERM; the program exited with status 1." in said


def test_os_exit_leaves_no_trace_and_says_why(tmp_path: Path) -> None:
    write(tmp_path / "hard.py", "import os, torch\ntorch.ones(2)\nos._exit(0)\n")
    collected = collect(tmp_path, "--", sys.executable, "hard.py")
    assert collected.returncode == 5
    assert "hard.py exited with status 0 and wrote no trace" in collected.stderr
    assert "os._exit" in collected.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hard.py"]


def test_forked_child_ends_and_exports_nothing(tmp_path: Path) -> None:
    write(
        tmp_path / "forks.py",
        """
        import os, sys
        import torch
        torch.ones(2) + 1
        child = os.fork()
        if child == 0:
            torch.zeros(2) + 1
            print("child", flush=True)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with torch.profiler.record_function("parent"):
            torch.ones(2) + 1
        """,
    )
    collected = collect(tmp_path, "--", sys.executable, "forks.py")
    assert collected.returncode == 0, collected.stderr
    assert collected.stdout == "child\n3\n"
    assert collected.stderr.count("Wrote") == 1
    assert ranges(tmp_path / "trace.parquet") == ["parent"]


def test_program_with_its_own_profiler_keeps_it(tmp_path: Path) -> None:
    write(
        tmp_path / "own.py",
        """
        import torch
        with torch.profiler.record_function("before"):
            torch.ones(2) + 1
        with torch.profiler.profile() as own:
            torch.ones(2) + 1
        own.export_chrome_trace("own.json")
        with torch.profiler.record_function("after"):
            torch.ones(2) + 1
        """,
    )
    collected = collect(tmp_path, "--", sys.executable, "own.py")
    assert collected.returncode == 0, collected.stderr
    assert "a torch.profiler of its own" in collected.stderr
    assert (tmp_path / "own.json").exists()
    assert ranges(tmp_path / "trace.parquet") == ["before"]


@pytest.mark.parametrize(
    ("code", "message"),
    [("import torch; 1 / 0", "no op ran in this process"), ("print('hello')", "had not imported torch")],
)
def test_nothing_recorded_is_a_failure_and_leaves_earlier_files(tmp_path: Path, code: str, message: str) -> None:
    earlier = {"trace.parquet": "earlier", "raw.json": "earlier too"}
    for name, text in earlier.items():
        (tmp_path / name).write_text(text)
    collected = collect(tmp_path, "--force", "--keep-raw", "raw.json", "--", sys.executable, "-c", code)
    assert collected.returncode == 5
    assert message in collected.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == earlier


def test_interpreter_without_torch_is_told_how_to_get_it(tmp_path: Path) -> None:
    write(tmp_path / "serve.py", "print('ran')")
    collected = collect(tmp_path, "--", sys.executable, "-S", "serve.py")  # -S: without site-packages
    assert (collected.returncode, collected.stdout) == (5, "")
    assert "has no torch" in collected.stderr
    assert "-m pip install 'torch>=2.1'" in collected.stderr


PROGRAM = ["--", sys.executable, "there.py", "--config=there.yaml", "-m"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "there.parquet", *PROGRAM], "there.parquet exists"),
        (["--", sys.executable, "missing.py"], "missing.py: no such script"),
        (["--", "/bin/sh", "-c", "true"], "/bin/sh is not Python"),
        (["--", "no-such-command"], "no such command"),
        (["--", sys.executable], "names no script and no module"),
        (["--keep-raw", "no/folder/raw.json", *PROGRAM], "is not a folder"),
        (["--keep-raw", "raw.txt", *PROGRAM], "raw.txt: --keep-raw writes .json or .json.gz"),
        (["--force", "-o", "there.py", *PROGRAM], "there.py is named in the command"),
        (["--force", "-o", "link.py", *PROGRAM], "link.py is named in the command"),
        (["--force", "-o", "./there.yaml", *PROGRAM], "there.yaml is named in the command"),
        (["-o", "new.parquet", *PROGRAM, "new.parquet"], "new.parquet is named in the command"),
        (["--force", "--keep-raw", "log.json", *PROGRAM, "log.json"], "log.json is named in the command"),
        (["--force", "-o", "there.py", "--", sys.executable, "-m", "there"], "there.py is named in the command"),
        (["--force", "-o", "app/__main__.py", "--", sys.executable, "app"], "__main__.py is named in the command"),
        (["-o", "new.json", "--keep-raw", "./new.json", *PROGRAM], "-o and --keep-raw are the same file"),
    ],
)
def test_wrong_requests_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    def record(*_: object, **__: object) -> Recording:
        raise AssertionError("the program was run")

    monkeypatch.setattr(torch_profiler, "record", record)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    for name in ("there.py", "there.yaml", "there.parquet", "log.json", "app/__main__.py"):
        (tmp_path / name).touch()
    (tmp_path / "link.py").symlink_to("there.py")
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(main, ["collect", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_modules_of_the_working_folder_are_the_program_s(tmp_path: Path) -> None:
    write(tmp_path / "pkgutil.py", "raise SystemExit('imported by tracekit')")
    settings = {"kind": "code", "target": "", "stacks": False, "shapes": False, "trace": "t", "status": "status"}
    done = run([sys.executable, "-S", "-c", START, json.dumps(settings)], tmp_path)  # -S: stops for want of torch
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads((tmp_path / "status").read_text())["state"] == "no_torch"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x.py", "-m", "a"], Program(sys.executable, (), "script", "x.py", ("-m", "a"))),
        (["-uB", "-X", "dev", "-Wignore", "x.py"], ("-uB", "-X", "dev", "-W", "ignore")),
        (["-m", "serve", "-c", "1"], Program(sys.executable, (), "module", "serve", ("-c", "1"))),
        (["-Ic", "print()", "a"], Program(sys.executable, ("-I",), "code", "print()", ("a",))),
        (["-mserve"], Program(sys.executable, (), "module", "serve", ())),
    ],
)
def test_command_is_read_as_the_interpreter_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: Program | tuple[str, ...]
) -> None:
    monkeypatch.chdir(write(tmp_path / "x.py", "").parent)
    program = parse_command([sys.executable, *words])
    assert expected in (program, program.flags)


@pytest.mark.parametrize(
    "shebang", ["#!{python}\n", "#!/usr/bin/env -S {python}\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n'''\n"]
)
def test_python_command_is_run_by_its_own_interpreter(tmp_path: Path, shebang: str) -> None:
    command = write(tmp_path / "serve", "")
    command.write_text(shebang.format(python=sys.executable))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    program = parse_command([str(command), "--port", "1"])
    assert program == Program(sys.executable, (), "script", str(command), ("--port", "1"))


def test_other_script_is_refused(tmp_path: Path) -> None:
    command = write(tmp_path / "serve", "#!/bin/bash\n")
    command.chmod(0o755)
    with pytest.raises(UsageError, match="is not Python"):
        parse_command([str(command)])


def test_launches_without_kernels_fail_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"ph": "X", "pid": 1, "tid": 1, "dur": 1}
    events = [{**row, "cat": "cpu_op", "name": "aten::mm", "ts": 1}]
    events += [
        {**row, "cat": "cuda_runtime", "name": name, "ts": 2 + i, "args": {"correlation": i}}
        for i, name in enumerate(["cudaLaunchKernel", "cudaGraphLaunch", "cudaLaunchHostFunc", "cudaMalloc"])
    ]
    raw = tmp_path / "raw.json"
    raw.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert _convert(raw, tmp_path / "draft.parquet", "serve.py exited with status 0 and") == 2

    def record(program: Program, trace: Path, *, stacks: bool, shapes: bool) -> Recording:
        shutil.copy(raw, trace)
        return Recording(trace, Ended(0, None), 1.0, "2.1.0", ("CPU", "CUDA"), displaced=stacks, all_threads=not shapes)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_profiler, "record", record)
    done = CliRunner().invoke(main, ["collect", "--keep-raw", "kept.json", "--", sys.executable, "-c", "pass"])
    assert done.exit_code == 5
    assert "work on the GPU 2 times and not one kernel" in done.stderr
    assert (tmp_path / "trace.parquet").exists()
    assert (tmp_path / "kept.json").read_bytes() == raw.read_bytes()


def test_file_that_cannot_be_converted_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(program: Program, trace: Path, *, stacks: bool, shapes: bool) -> Recording:
        trace.write_text("no trace")
        return Recording(trace, Ended(0, None), 1.0, "2.1.0", ("CPU",), displaced=False, all_threads=stacks or shapes)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_profiler, "record", record)
    (tmp_path / "trace.json").write_text("older")
    done = CliRunner().invoke(main, ["collect", "--", sys.executable, "-c", "pass"])
    assert done.exit_code == UnknownFormatError.exit_code
    assert "records only the thread that imported it" in done.stderr
    assert "Wrote trace-1.json" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "trace.json": "older",
        "trace-1.json": "no trace",
    }


def test_killed_collector_takes_the_program_with_it(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs prctl")
    write(tmp_path / "loop.py", LOOP.replace('"ready"', "__import__('os').getpid()"))
    with subprocess.Popen(
        [*COLLECT, "--", sys.executable, "loop.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until and _runs(program):
        time.sleep(0.05)
    assert not _runs(program)


def _runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
