"""What `collect --attach` understands of addresses, of a server's process and settings, and what it then asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_server import serve
from tracekit.collectors._attach_plan import Situation, make_plan
from tracekit.collectors._engine_api import Address, Engine, Server, identify, parse_address
from tracekit.collectors._server_process import ServerProcess, read_settings, serving
from tracekit.errors import CaptureError, UsageError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("8000", "http://127.0.0.1:8000"),
        (":8000", "http://127.0.0.1:8000"),
        ("gpu7:8000", "http://gpu7:8000"),
        ("https://gpu7/engine/", "https://gpu7:443/engine"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(text: str, read: str) -> None:
    assert str(parse_address(text)) == read


@pytest.mark.parametrize("text", ["gpu7", "ftp://gpu7:1", "http://gpu7:99999", "http://me:secret@gpu7:1", ""])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "--attach" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "environment", "profiler", "folder", "ranks"),
    [
        ("vllm serve m", {}, None, None, None),
        ('vllm serve m -tp 2 --profiler-config {"profiler":"torch","torch_profiler_dir":"p"}', {}, "torch", "/w/p", 2),
        ("vllm serve m --profiler-config.torch_profiler_dir=/p -pp=2 -tp=4", {}, None, "/p", 8),
        ("vllm serve m --profiler_config.profiler cuda", {}, "cuda", None, None),
        ("vllm serve m --data-parallel-size 4 --data-parallel-size-local 2", {}, None, None, 2),
        ("vllm serve m", {"VLLM_TORCH_PROFILER_DIR": "~/p", "HOME": "/h"}, None, "/h/p", None),
        ("vllm serve m --profiler-config {broken -tp", {}, None, None, None),
    ],
)
def test_command_lines(
    words: str, environment: dict[str, str], profiler: str | None, folder: str | None, ranks: int | None
) -> None:
    said = read_settings(words.split(" "), environment, Path("/w"))
    assert (said.profiler, said.folder and str(said.folder), said.ranks) == (profiler, folder, ranks)


@pytest.mark.parametrize(
    ("host", "process", "said"),
    [
        ("192.0.2.7", None, "is another machine, and the profiler's files must be reachable from here"),
        ("127.0.0.1", None, "cannot be seen (a container, or another user's)"),
        ("127.0.0.1", ServerProcess(folder=Path("/p"), same_files=False), "runs in a container, and the folder"),
        ("127.0.0.1", ServerProcess(remote_folder=True), "writes to remote storage"),
        ("127.0.0.1", ServerProcess(), "does not say where its profiler writes"),
    ],
)
def test_folder_that_cannot_be_known_is_asked_for(
    tmp_path: Path, host: str, process: ServerProcess | None, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(Situation(Address("http", host, 1), Engine("vllm"), process, None, tmp_path, None))
    assert said in str(caught.value)
    assert "--profile-dir" in str(caught.value)


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ({"tp_size": 2, "pp_size": 2, "dp_size": 3}, 12),
        ({"tp_size": 4, "pp_size": 1, "dp_size": 4, "enable_dp_attention": True}, 4),
        ({"tp_size": "?"}, None),
    ],
)
def test_ranks_of_sglang(said: dict[str, object], ranks: int | None) -> None:
    answer = {**said, "version": "0.4.9", "launch_command": "--api-key secret"}
    with serve() as server:
        server.answers["/get_server_info"] = lambda _: (200, answer)
        engine = identify(Server(Address("http", "127.0.0.1", server.port)), "auto")
    assert engine == Engine("sglang", "0.4.9", ranks=ranks)


def test_process_behind_a_port_is_found() -> None:
    with serve() as server:
        assert serving(server.port) == ServerProcess(same_files=True, same_user=True)
    assert serving(1) is None


def test_sglang_is_asked_for_what_it_describes(tmp_path: Path) -> None:
    def plan(keys: frozenset[str] | None) -> dict[str, object] | None:
        engine = Engine("sglang", "0.5.23", True, keys, ranks=2)
        return make_plan(Situation(Address("http", "127.0.0.1", 1), engine, ServerProcess(), None, tmp_path, 7)).body

    least = {"output_dir": str(tmp_path), "num_steps": 7}
    assert plan(None) == least | {"record_shapes": True, "with_stack": False}
    assert plan(frozenset({"output_dir", "num_steps", "with_stack"})) == least | {"with_stack": False}
    with pytest.raises(UsageError, match="does not take num_steps; use a newer one"):
        plan(frozenset({"output_dir"}))


def test_sglang_whose_profiler_obeys_nobody(tmp_path: Path) -> None:
    process = ServerProcess(stages_only=True)
    with pytest.raises(CaptureError, match="was started with SGLANG_PROFILE_V2"):
        make_plan(Situation(Address("http", "127.0.0.1", 1), Engine("sglang"), process, None, tmp_path, None))
