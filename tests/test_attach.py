"""`collect --attach` against servers that behave badly. The good path is `test_attach_vllm.py`, with a real engine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bad_server import Bad, serve, serve_apart, trace, writes
from tracekit.collectors import attach as attach_module
from tracekit.collectors.attach import Attached, attach
from tracekit.errors import CaptureError, UsageError

ROOT = Path(__file__).resolve().parent.parent
KEYS: dict[str, object] = {"profile_prefix": {}, "max_iterations": {}}


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place of this test's for what is noted of servers; its path is to be short."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bad]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy is never asked
    monkeypatch.setattr(attach_module, "_QUIET_S", {"vllm": 0.5, "sglang": 0.5})
    monkeypatch.setattr(attach_module, "_TICK_S", 0.05)
    with serve() as server:
        yield server


def run(bad: Bad, folder: Path, *, steps: int | None = None, timeout: float = 5, **changes: Any) -> Attached:
    said: list[str] = changes.pop("said", [])
    return attach(
        changes.pop("address", f":{bad.port}"),
        engine=changes.pop("engine", "auto"),
        duration=changes.pop("duration", None if steps else 0.1),
        steps=steps,
        profile_dir=folder,
        timeout=timeout,
        raw=folder,
        say=changes.pop("say", said.append),
    )


def fails(kind: type[Exception], bad: Bad, folder: Path, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        run(bad, folder, **changes)
    return str(caught.value)


# ---- no engine, or one that will not ---------------------------------------------------------------------------------


def test_nothing_listens(bad: Bad, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert fails(CaptureError, bad, tmp_path, address=f":{port}") == (
            f"http://127.0.0.1:{port}: GET /openapi.json: connection refused: nothing listens there. Is the server up, "
            "and is this its port?"
        )


def test_what_listens_is_no_engine(bad: Bad, tmp_path: Path) -> None:
    assert "answers, but neither as vLLM (GET /version) nor as SGLang (GET /server_info)" in fails(
        CaptureError, bad, tmp_path
    )


def test_what_listens_speaks_no_http(bad: Bad, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        threading.Thread(target=greet, daemon=True).start()
        message = fails(CaptureError, bad, tmp_path, address=f":{listener.getsockname()[1]}")
    assert message.endswith("GET /openapi.json: what answers there is no HTTP server")


def test_what_listens_speaks_no_tls(bad: Bad, tmp_path: Path) -> None:
    message = fails(CaptureError, bad.vllm(), tmp_path, address=f"https://127.0.0.1:{bad.port}")
    assert message == (
        f"https://127.0.0.1:{bad.port}: GET /openapi.json: it speaks no TLS. Is it http://127.0.0.1:{bad.port}?"
    )


@pytest.mark.parametrize(("engine", "path"), [("vllm", "/version"), ("sglang", "/server_info")])
def test_what_listens_is_not_the_engine_named(bad: Bad, tmp_path: Path, engine: str, path: str) -> None:
    assert fails(CaptureError, bad, tmp_path, engine=engine) == (
        f"http://127.0.0.1:{bad.port} answers, but not as {engine} (GET {path}, GET /v1/models)"
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "wants a key (401 to GET /openapi.json). Put the server's key"),
        (307, "sends GET /openapi.json on to another address; name that one in --attach"),
    ],
)
def test_server_behind_something(bad: Bad, tmp_path: Path, status: int, said: str) -> None:
    bad.answers["/openapi.json"] = lambda _: (status, "")
    assert said in fails(CaptureError, bad, tmp_path)


def test_vllm_without_profiling_says_what_to_set(bad: Bad, tmp_path: Path) -> None:
    bad.vllm().answers["/openapi.json"] = lambda _: (200, {"paths": {"/version": {"get": {}}}})
    assert fails(CaptureError, bad, tmp_path) == (
        f"the vllm at http://127.0.0.1:{bad.port} was not started with profiling enabled. Start it with "
        '--profiler-config \'{"profiler":"torch","torch_profiler_dir":"/abs/dir","torch_profiler_with_stack":false}\' '
        "(vLLM before 0.13: the variable VLLM_TORCH_PROFILER_DIR=/abs/dir)"
    )
    assert bad.asked == []


def test_vllm_without_profiling_and_without_a_description(bad: Bad, tmp_path: Path) -> None:
    bad.vllm()
    del bad.answers["/openapi.json"], bad.answers["/start_profile"]
    assert "has no /start_profile: profiling is not enabled. Start it with" in fails(CaptureError, bad, tmp_path)
    assert bad.asked == [("/start_profile", None)]


def test_another_engine_than_the_one_named(bad: Bad, tmp_path: Path) -> None:
    message = fails(UsageError, bad.vllm(), tmp_path, engine="sglang")
    assert message == f"http://127.0.0.1:{bad.port} answers as vLLM, not as SGLang; leave --engine out"


def test_a_recording_that_is_open_is_left_alone(bad: Bad, tmp_path: Path) -> None:
    bad.vllm().answers["/start_profile"] = lambda _: (409, {"error": {"message": "already active"}})
    assert "is recording already, for somebody else or since an earlier try" in fails(CaptureError, bad, tmp_path)
    assert bad.asked == [("/start_profile", None)]


def test_start_that_fails_shows_what_the_server_said(bad: Bad, tmp_path: Path) -> None:
    bad.vllm().answers["/start_profile"] = lambda _: (500, "Internal Server Error")
    assert fails(CaptureError, bad, tmp_path).startswith(
        f"http://127.0.0.1:{bad.port} answered 500 to /start_profile: Internal Server Error. Its log says more."
    )


def test_steps_where_the_engine_knows_no_such_key(bad: Bad, tmp_path: Path) -> None:
    bad.vllm()
    assert "cannot be told to stop after a number of steps" in fails(UsageError, bad, tmp_path, steps=3)
    assert bad.asked == []


# ---- keys that are refused, or taken and ignored ---------------------------------------------------------------------


def test_strict_server_that_refuses_a_key_it_describes(bad: Bad, tmp_path: Path) -> None:
    bad.vllm(KEYS, writes(tmp_path, rank0=trace()))
    bad.answers["/start_profile"] = lambda body: (200, "") if body is None else (422, "extra_forbidden")
    assert run(bad, tmp_path).partial == ()
    (first, wished), second, third = bad.asked
    assert (first, list(wished), second, third) == (
        "/start_profile",
        ["profile_prefix"],
        ("/start_profile", None),
        ("/stop_profile", None),
    )


def test_strict_server_that_refuses_steps(bad: Bad, tmp_path: Path) -> None:
    bad.vllm(KEYS).answers["/start_profile"] = lambda _: (400, "not supported by this worker")
    assert fails(UsageError, bad, tmp_path, steps=3) == (
        f"http://127.0.0.1:{bad.port} does not take --steps (400: not supported by this worker); use --duration"
    )
    assert [path for path, _ in bad.asked] == ["/start_profile", "/start_profile"]


def test_name_of_files_that_the_server_ignores(bad: Bad, tmp_path: Path) -> None:
    (tmp_path / "old.pt.trace.json.gz").write_bytes(trace())
    bad.vllm(KEYS, writes(tmp_path, host_17=trace()))
    attached = run(bad, tmp_path)
    assert attached.files == (tmp_path / "host_17.1.pt.trace.json.gz",)
    recorded = attached.capture.pop("window")
    assert isinstance(recorded, dict)
    assert recorded.pop("recorded_s") == pytest.approx(0.1, abs=0.1)
    assert recorded == {"duration_s": 0.1, "steps": None, "ended_by": ["duration"]}
    assert attached.capture == {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "processes": [{"rank": 0, "steps": 1}],
    }


# ---- stopping, and what comes of it ----------------------------------------------------------------------------------


def test_stop_that_takes_long_is_waited_for_with_news(bad: Bad, tmp_path: Path) -> None:
    content = trace(steps=2)

    def slowly(_: object) -> tuple[int, object]:
        path = tmp_path / "rank0.1.pt.trace.json.gz"
        with path.open("wb", buffering=0) as file:
            file.write(content[:100])
            time.sleep(2.5)
            file.write(content[100:])
        return 200, ""

    said: list[str] = []
    attached = run(bad.vllm(stop=slowly), tmp_path, said=said)
    assert (len(attached.files), attached.partial) == (1, ())
    assert said == [
        f"vllm 0.32.0 at http://127.0.0.1:{bad.port} records 0.1 s; send it requests. Ctrl-C ends it early.",
        "The server is still writing: 2 s, 0.0 MB in 1 file so far (limit 5 s)",
    ]


def test_stop_that_never_answers_ends_at_the_time_limit(bad: Bad, tmp_path: Path) -> None:
    def never(_: object) -> tuple[int, object]:
        bad.ended.wait(30)
        return 200, ""

    begun = time.monotonic()
    message = fails(CaptureError, bad.vllm(stop=never), tmp_path, timeout=1)
    assert time.monotonic() - begun < 3
    assert message.startswith(
        f"no file can be read in {tmp_path}. The server has not answered /stop_profile (limit 1 s, see --timeout). "
        "Writing takes minutes where there are many events"
    )


def test_stop_that_fails_keeps_what_is_there(bad: Bad, tmp_path: Path) -> None:
    def half(body: object) -> tuple[int, object]:
        writes(tmp_path, rank1=trace(1, 2))(body)
        return 500, "EngineDeadError"

    attached = run(bad.vllm(stop=half), tmp_path)
    assert attached.files == (tmp_path / "rank1.1.pt.trace.json.gz",)
    assert attached.partial == (
        "1 of 2 ranks wrote a file: no file of rank 0. The server failed when told to stop; its log says why",
    )


def test_engine_that_dies_of_stopping_has_left_its_files(bad: Bad, tmp_path: Path) -> None:
    def last(body: object) -> tuple[int, object]:
        writes(tmp_path, rank0=trace())(body)
        raise ConnectionResetError

    attached = run(bad.vllm(stop=last), tmp_path)
    assert (len(attached.files), attached.partial) == (1, ())
    assert attached.unfinished() == "All files are whole. The server failed when told to stop; its log says why"


def test_stop_that_is_not_answered_though_the_files_are_whole(
    bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(body: object) -> tuple[int, object]:
        writes(tmp_path, rank0=trace())(body)
        bad.ended.wait(30)
        return 200, ""

    monkeypatch.setattr(attach_module, "_ANSWER_S", 0.5)
    attached = run(bad.vllm(stop=busy), tmp_path)
    assert attached.unfinished().startswith(
        "All files are whole, though the server has not answered /stop_profile yet: it is busy still"
    )
    asked = len(bad.asked)
    message = fails(CaptureError, bad, tmp_path)
    assert re.match(
        rf"http://127.0.0.1:{bad.port} was told \d s ago to end an earlier recording, and had not answered yet; a "
        "second one on top may end the server. Once its log says that the profiler has stopped, remove /",
        message,
    )
    assert len(bad.asked) == asked
    bad.ended.set()  # the answer
    time.sleep(0.5)
    assert attached.unfinished() == ""
    bad.answers["/stop_profile"] = writes(tmp_path, rank1=trace())
    assert len(run(bad, tmp_path).files) == 1


def test_earlier_recording_that_is_being_written(bad: Bad, tmp_path: Path) -> None:
    def write() -> None:
        with (tmp_path / "rank0.1.pt.trace.json.gz").open("wb", buffering=0) as file:
            while not bad.ended.wait(0.1):
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.2)
    message = fails(CaptureError, bad.vllm(), tmp_path)
    bad.ended.set()
    writer.join()
    assert message.startswith(f"rank0.1.pt.trace.json.gz in {tmp_path} is still being written, by an earlier recording")
    assert bad.asked == []


@pytest.mark.parametrize("leaves", [(), ("rank0",)])
def test_server_that_dies_in_the_window(bad: Bad, tmp_path: Path, leaves: tuple[str, ...]) -> None:
    """Of 30 s, after half a second."""
    said: list[str] = []
    with serve_apart() as (process, port):

        def die() -> None:
            writes(tmp_path, **dict.fromkeys(leaves, trace()))(None)
            process.kill()

        def say(text: str) -> None:
            if not said:
                threading.Timer(0.5, die).start()
            said.append(text)

        begun = time.monotonic()
        wanted: dict[str, Any] = {"address": f":{port}", "duration": 30, "say": say}
        if leaves:
            attached = run(bad, tmp_path, **wanted)
            assert len(attached.files) == 1
            assert re.fullmatch(r"the server ended, [01]\.\d s into the window of 30 s", "; ".join(attached.partial))
        else:
            message = fails(CaptureError, bad, tmp_path, **wanted)
            assert message.startswith(f"the server at http://127.0.0.1:{port} ended, ")
            assert message.endswith(f" s into the window, and left no file in {tmp_path}. Its log says why")
        assert time.monotonic() - begun < 5
    assert len(said) == 2
    assert said[1].startswith(f"The server at http://127.0.0.1:{port} is gone, ")


def test_no_file_appears(bad: Bad, tmp_path: Path) -> None:
    message = fails(CaptureError, bad.vllm(), tmp_path)
    assert message.startswith(
        f"the vllm at http://127.0.0.1:{bad.port} recorded, it says, and no file appeared in {tmp_path}. Is that where "
        "it writes? Start it with --profiler-config"
    )


def test_missing_rank_is_named(bad: Bad, tmp_path: Path) -> None:
    (tmp_path / "dp0_pp0_tp1_rank1.0.pt.trace.json.gz").write_bytes(trace(1, 3))  # of an earlier recording
    stop = writes(tmp_path, dp0_pp0_tp0_rank0=trace(0, 3), dp0_pp0_tp2_rank2=trace(2, 3))
    attached = run(bad.vllm(stop=stop), tmp_path)
    assert [path.name for path in attached.files] == [
        "dp0_pp0_tp0_rank0.1.pt.trace.json.gz",
        "dp0_pp0_tp2_rank2.1.pt.trace.json.gz",
    ]
    assert attached.partial == (
        "2 of 3 ranks wrote a file: no file of rank 1. The server says it is done; ranks on other machines write to "
        "folders of theirs",
    )


def test_replicas_get_ranks_of_their_own(bad: Bad, tmp_path: Path) -> None:
    stop = writes(tmp_path, dp0_tp0_rank0=trace(), dp1_tp0_rank0=trace())
    attached = run(bad.vllm(stop=stop), tmp_path)
    assert [(path.name[:3], rank) for path, rank in attached.ranks.items()] == [("dp0", 0), ("dp1", 1)]


def test_cut_file_is_kept_and_named(bad: Bad, tmp_path: Path) -> None:
    stop = writes(tmp_path, rank0=trace(0, 2, steps=500), rank1=trace(1, 2, steps=500)[:-200])
    attached = run(bad.vllm(stop=stop), tmp_path)
    assert len(attached.files) == 2
    assert [reason.partition(". ")[0] for reason in attached.partial] == ["rank1.1.pt.trace.json.gz ends early"]


def test_nobody_sent_requests(bad: Bad, tmp_path: Path) -> None:
    stop = writes(tmp_path, rank0=trace(steps=0))
    assert fails(CaptureError, bad.vllm(stop=stop), tmp_path) == (
        "empty window: no step ran in the 0.1 s that the server recorded. Send requests while it records"
    )


def test_fewer_steps_than_asked_for(bad: Bad, tmp_path: Path) -> None:
    bad.vllm(KEYS, writes(tmp_path, rank0=trace(steps=3)))
    attached = run(bad, tmp_path, steps=10, timeout=1)
    assert attached.partial == ("3 of 10 steps ran before the window ended",)
    wished = bad.asked[0][1]
    assert (wished["max_iterations"], sorted(wished)) == (10, ["max_iterations", "profile_prefix"])


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from tracekit.collectors.attach import attach
from tracekit.errors import CaptureError
folder = Path(sys.argv[2])
try:
    attached = attach(sys.argv[1], engine="auto", duration=60, steps=None, profile_dir=folder, timeout=30, raw=folder,
                      say=lambda text: print(text, flush=True))
    print(attached.capture["window"]["ended_by"], len(attached.files))
except CaptureError as error:
    print(error)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_the_server_and_keeps_the_trace(bad: Bad, tmp_path: Path, number: int) -> None:
    bad.vllm(stop=writes(tmp_path, rank0=trace()))
    with started(bad, tmp_path) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=20)
    assert said.splitlines() == [
        "Interrupted: the window ends here. The trace is kept; once more gives up.",
        "['interrupt'] 1",
    ]
    assert bad.asked == [("/start_profile", None), ("/stop_profile", None)]


def test_second_interrupt_gives_up_waiting(bad: Bad, tmp_path: Path) -> None:
    def never(_: object) -> tuple[int, object]:
        bad.ended.wait(30)
        return 200, ""

    with started(bad.vllm(stop=never), tmp_path) as process:
        process.send_signal(signal.SIGINT)
        while len(bad.asked) < 2:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    assert said.splitlines()[1] == (
        f"given up. http://127.0.0.1:{bad.port} has been told to stop recording, and may still be writing into "
        f"{tmp_path}: once it has, `tracekit convert` reads the files there"
    )
    assert bad.asked == [("/start_profile", None), ("/stop_profile", None)]


def started(bad: Bad, folder: Path) -> subprocess.Popen[str]:
    """A process that has begun to record for a minute."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(bad.port), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().endswith("send it requests. Ctrl-C ends it early.\n")
    return process
