"""`tracekit collect` on real programs: they see and say what they would without it, and each part is recorded."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import duckdb
import pytest

from tests.collecting import capture_of, collect, names, ranges, run, write

pytest.importorskip("torch", reason="collect runs programs that import torch")

PYTHON = sys.executable
MIRROR = """
    import json, os, sys
    if "PLAIN" not in os.environ:  # the import takes seconds
        import torch
        with torch.profiler.record_function("seen"):
            torch.ones(2) + 1
    main = sys.modules["__main__"]
    file = globals().get("__file__")
    print(json.dumps([sys.argv, sys.path, sys.orig_argv, __name__, file, main.__dict__ is globals()]))
    print(sys.stdin.readline().upper(), file=sys.stderr)
"""


def test_programs_see_what_they_would_see_without(tmp_path: Path) -> None:
    """A script, a module and a code string, started by a shell script; with input and a secret."""
    (tmp_path / "package").mkdir()
    write(tmp_path / "package" / "__main__.py", MIRROR)
    write(tmp_path / "mirror.py", MIRROR)
    write(
        tmp_path / "all.sh",
        f"""
        {PYTHON} -W ignore mirror.py --output x --api-key sk-verysecret0123456789
        {PYTHON} -m package argument
        {PYTHON} -c 'exec(open("mirror.py").read())' -c
        exit 7
        """,
    )
    command = ["/bin/sh", "all.sh"]
    plain = run(command, tmp_path, "hello", PLAIN="1")
    collected = collect(tmp_path, "--keep-raw", "raw", "--", *command, text="hello")
    assert (collected.returncode, plain.returncode) == (7, 7), collected.stderr
    assert collected.stdout == plain.stdout
    said = collected.stderr.splitlines()
    assert said[:3] == plain.stderr.splitlines() == ["HELLO", "", ""]
    assert re.fullmatch(r"Recorded 3 of 3 processes for [\d.]+ m?s: torch [\d.]+\S*, CPU\.", said[3])
    assert said[4].split() == ["process", "rank", "events", "device", "steps", "size"]
    assert [line.split(" (")[0].strip() for line in said[5:8]] == ["mirror.py", "package", "python -c"]
    assert said[9:] == [
        "Wrote raw: the profiler's own files; they may hold secrets",
        "The program exited with status 7.",
    ]
    assert ranges(tmp_path / "trace.parquet") == [(rank, "seen") for rank in range(3)]
    rows = duckdb.execute("SELECT * FROM read_parquet(?)", [str(tmp_path / "trace.parquet")]).fetchall()
    assert "verysecret" not in repr(rows) + collected.stderr
    assert b"verysecret" not in (tmp_path / "trace.parquet").read_bytes()
    assert len(list((tmp_path / "raw").glob("*.json"))) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"all.sh", "mirror.py", "package", "raw", "trace.parquet"}


def test_each_way_to_end_keeps_the_trace(tmp_path: Path) -> None:
    """With the traceback and the status that the program has without; SIGKILL alone leaves no trace of that process."""
    write(
        tmp_path / "end.py",
        """
        import os, sys
        if "PLAIN" not in os.environ:
            import torch
            with torch.profiler.record_function(sys.argv[1]):
                torch.ones(2) + 1
        exec(sys.argv[1])
        """,
    )
    hard = "import subprocess; subprocess.run('true', preexec_fn=int); os._exit(status=4)"
    endings = ["1 / 0", hard, "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"]
    write(tmp_path / "all.sh", "".join(f'{PYTHON} end.py "{ending}"\necho $?\n' for ending in endings))
    plain = run(["/bin/sh", "all.sh"], tmp_path, PLAIN="1")
    collected = collect(tmp_path, "--", "/bin/sh", "all.sh")
    assert plain.stdout == collected.stdout == "1\n4\n143\n137\n"
    assert plain.stderr.count("ZeroDivisionError") == 1
    assert collected.stderr.startswith(plain.stderr.partition("Terminated")[0])
    assert names(tmp_path / "trace.parquet") == endings[:3]
    assert collected.returncode == 5
    assert re.search(
        r"^tracekit: end.py \(\d+\) ended before the trace was saved: it crashed.* trace.parquet holds what there is$",
        collected.stderr,
        re.MULTILINE,
    )
    (partial,) = capture_of(tmp_path / "trace.parquet")["partial"]
    assert re.fullmatch(r"process \d+ ended before the trace was saved", partial)


PROCESSES = """
    import multiprocessing, sys, threading, time
    import torch

    def work(name):
        with torch.profiler.record_function(name):
            torch.ones(2) + 1

    if __name__ == "__main__":
        work("main")
        context = multiprocessing.get_context(sys.argv[1])
        children = [context.Process(target=work, args=(f"child {number}",)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        work("after")
        print([child.exitcode for child in children])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_are_recorded_each_as_a_rank_of_its_own(tmp_path: Path, method: str) -> None:
    write(tmp_path / "parent.py", PROCESSES)
    collected = collect(tmp_path, "--", PYTHON, "parent.py", method)
    assert (collected.returncode, collected.stdout) == (0, "[0, 0]\n"), collected.stderr
    found = ranges(tmp_path / "trace.parquet")
    assert [name for rank, name in found if rank == 0] == ["main", "after"]
    assert sorted(name for rank, name in found if rank > 0) == ["child 0", "child 1"]
    assert {rank for rank, _ in found} == {0, 1, 2}
    assert "Recorded 3 of 3 processes" in collected.stderr


def test_workers_of_a_data_loader_are_recorded_and_end(tmp_path: Path) -> None:
    write(
        tmp_path / "load.py",
        """
        import torch

        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                with torch.profiler.record_function("item"):
                    return torch.ones(2) * index

        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
        print(sum(batch.sum().item() for batch in loader))
        """,
    )
    collected = collect(tmp_path, "--", PYTHON, "load.py")
    assert (collected.returncode, collected.stdout) == (0, "12.0\n"), collected.stderr
    assert [name for rank, name in ranges(tmp_path / "trace.parquet") if rank > 0 and name == "item"] == ["item"] * 4


def test_threads_of_a_server_are_recorded_to_the_last_exit_handler(tmp_path: Path) -> None:
    """An asyncio server whose model runs on a worker thread, in a program with a sitecustomize of its own."""
    write(tmp_path / "sitecustomize.py", "import builtins\nbuiltins.own_sitecustomize = __file__\n")
    write(
        tmp_path / "serve.py",
        """
        import asyncio, atexit, sys, threading, time

        async def answer(reader, writer):
            name = (await reader.readline()).decode().strip()
            await asyncio.to_thread(work, name)
            writer.write(b"done")
            writer.close()

        async def main():
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            for name in "first", "second":
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(name.encode() + b"\\n")
                print((await reader.read()).decode())
            server.close()

        def work(name):
            global torch
            import torch  # late
            with torch.profiler.record_function(name):
                torch.ones(2) + 1

        def late():
            time.sleep(0.2)
            work("thread")

        asyncio.run(main())
        atexit.register(work, "exit handler")
        threading.Thread(target=late).start()
        print(own_sitecustomize)
        """,
    )
    collected = collect(tmp_path, "--", PYTHON, "serve.py", PYTHONPATH=str(tmp_path))
    assert collected.returncode == 0, collected.stderr
    assert collected.stdout == f"done\ndone\n{tmp_path / 'sitecustomize.py'}\n"
    assert names(tmp_path / "trace.parquet") == ["first", "second", "thread", "exit handler"]


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
    collected = collect(tmp_path, "--duration", "100", "--", PYTHON, "own.py")
    assert collected.returncode == 5
    assert re.search(
        r"^tracekit: the trace of own\.py \(\d+\) ends where the program started a torch\.profiler of its own; only "
        r"one can run: record without it\. trace\.parquet holds what",
        collected.stderr,
        re.M,
    )
    assert (tmp_path / "own.json").exists()
    assert names(tmp_path / "trace.parquet") == ["before"]
    capture = capture_of(tmp_path / "trace.parquet")
    assert capture["window"]["ended_by"] == ["displaced", "finish"]
    assert [re.sub(r"[\d.]+", "N", one) for one in capture["partial"]] == [
        "the trace of process N ends where the program started a torchNprofiler of its own",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-c", "print('hello')"], "one Python process ran, and it never imported torch: there was nothing to record"),
        (["-I", "-c", "print('hello')"], "Python must run without -I, -E and -S"),
        (["-c", "import torch; print('hello')"], "not one op ran after torch was imported"),
    ],
)
def test_nothing_recorded_is_a_failure_and_leaves_earlier_files(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "trace.parquet").write_text("earlier")
    collected = collect(tmp_path, "--force", "--keep-raw", "raw", "--", PYTHON, *words)
    assert (collected.returncode, collected.stdout) == (5, "hello\n")
    assert message in collected.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"trace.parquet": "earlier"}
