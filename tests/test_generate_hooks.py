"""Marks of `collect` in Transformers' `generate`, of tiny models with random weights."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.marked_steps import Step, record, steps

torch: Any = pytest.importorskip("torch", reason="the models are torch's")

from tracekit.collectors._in_process.generate_hooks import _HERE, hook_transformers  # noqa: E402
from tracekit.collectors._in_process.watch import watch  # noqa: E402

IDS = torch.arange(1, 22).reshape(3, 7)
REPEATING = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]])


def prefill(requests: int, tokens: int) -> Step:
    return "prefill", requests, tokens, None, None


def decode(requests: int, tokens: int, phase: str = "decode") -> Step:
    return phase, None, None, requests, tokens


def transformers() -> Any:
    """Imported when a test runs: other workers of the suite only list the tests of this file."""
    return pytest.importorskip("transformers", reason="whose generate this is about")


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = transformers().LlamaConfig(num_key_value_heads=2, max_position_embeddings=128, **sizes, **tokens)
    return transformers().LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    """A Llama whose steps are marked; what it generates is the same as before."""
    model = llama()
    before = model.generate(IDS, max_new_tokens=3, do_sample=False)
    hook_transformers(transformers().generation.utils)
    assert model.generate(IDS, max_new_tokens=3, do_sample=False).tolist() == before.tolist()
    return model


Case = tuple[str, Any, dict[str, Any], list[Step]]
CASES: list[Case] = [
    ("greedy", IDS, {}, [prefill(3, 21), decode(3, 3), decode(3, 3)]),
    ("one token", IDS[:1], {"max_new_tokens": 1}, [prefill(1, 7)]),
    ("sampled", IDS, {"do_sample": True}, [prefill(3, 21), decode(3, 3), decode(3, 3)]),
    ("beams", IDS, {"num_beams": 2}, [prefill(6, 42), decode(6, 6), decode(6, 6)]),
    ("static cache", IDS, {"cache_implementation": "static"}, [prefill(3, 21), decode(3, 3), decode(3, 3)]),
    ("no cache", IDS, {"use_cache": False}, [prefill(3, 21), decode(3, 24), decode(3, 27)]),
    (
        "prompt in chunks",
        IDS,
        {"prefill_chunk_size": 3},
        [prefill(3, 9), prefill(3, 9), prefill(3, 3), decode(3, 3), decode(3, 3)],
    ),
]


@pytest.mark.parametrize(("ids", "options", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_forward_begins_a_step(
    model: Any, ids: Any, options: dict[str, Any], expected: list[Step], tmp_path: Path
) -> None:
    options = {"max_new_tokens": 3, "do_sample": False, **options}
    assert steps(lambda: model.generate(ids, **options), tmp_path) == expected


def test_step_has_the_forward_and_the_sampling(model: Any, tmp_path: Path) -> None:
    path = record(lambda: model.generate(IDS, max_new_tokens=3, do_sample=False), tmp_path / "raw.json")
    query = "SELECT name, list(step ORDER BY ts) FROM ops WHERE name IN ('aten::embedding', 'aten::argmax') GROUP BY 1"
    with tracekit.open(path) as trace:
        assert dict(tuple(row.values()) for row in trace.sql(query).to_pylist()) == {
            "aten::embedding": [0, 1, 2],
            "aten::argmax": [0, 1, 2],
        }


def test_drafts_and_their_verification(model: Any, tmp_path: Path) -> None:
    drafter = llama()  # of the same weights: every draft is right
    drafts = {"num_assistant_tokens": 2, "assistant_confidence_threshold": 0, "pad_token_id": 0}
    drafter.generation_config = transformers().GenerationConfig(**drafts)
    config = transformers().GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0)
    found = steps(lambda: model.generate(IDS[:1], generation_config=config, assistant_model=drafter), tmp_path)
    assert found == [
        decode(1, 7, "draft"),
        decode(1, 1, "draft"),
        prefill(1, 9),
        decode(1, 2, "draft"),
        decode(1, 1, "draft"),
        decode(1, 3, "verify"),
    ]


def test_drafts_that_are_looked_up_in_the_prompt(model: Any, tmp_path: Path) -> None:
    def generate() -> None:
        model.generate(REPEATING, max_new_tokens=3, do_sample=False, prompt_lookup_num_tokens=2)

    found = steps(generate, tmp_path)
    assert found[0] == prefill(1, 12)
    assert {step[0] for step in found[1:]} <= {"verify", "decode"}


def test_encoder_and_decoder(model: Any, tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers().T5Config(decoder_start_token_id=0, eos_token_id=None, **sizes)
    t5 = transformers().T5ForConditionalGeneration(config).eval()
    found = steps(lambda: t5.generate(IDS, max_new_tokens=2, do_sample=False), tmp_path)
    assert found == [prefill(3, 3), decode(3, 3)]


def test_compiled_forward_is_left_whole(model: Any, tmp_path: Path) -> None:
    compiled = llama()
    graphs: list[int] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    compiled.forward = torch.compile(compiled.forward, backend=backend, fullgraph=True, dynamic=False)
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    assert compiled.generate(IDS, **options).tolist() == model.generate(IDS, **options).tolist()
    assert steps(lambda: compiled.generate(IDS, **options), tmp_path) == [prefill(3, 21), decode(3, 3), decode(3, 3)]


def test_generate_that_fails_leaves_no_step_open(model: Any, tmp_path: Path) -> None:
    def stop(ids: Any, scores: Any) -> Any:
        raise KeyError("stop")

    def program() -> None:
        with pytest.raises(KeyError, match="stop"):
            model.generate(IDS, max_new_tokens=3, do_sample=False, stopping_criteria=[stop])
        torch.ones(2) + 1
        model.prepare_inputs_for_generation(IDS)  # as in a loop of one's own, which no one marks

    assert steps(program, tmp_path) == [prefill(3, 21)]
    assert (_HERE.mark, _HERE.generations, watch.thread.depth) == (None, [], 0)


def test_threads_generate_with_one_model(model: Any) -> None:
    watch.times.clear()
    together = threading.Barrier(2)

    def serve(rows: int) -> None:
        together.wait(60)
        model.generate(IDS[:rows], max_new_tokens=5, do_sample=False)

    threads = [threading.Thread(target=serve, args=(rows,)) for rows in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = {name: len(durations) for (name, _), durations in watch.times.items()}
    assert counted == {
        "tracekit.step[prefill prefill_requests=1 prefill_tokens=7]": 1,
        "tracekit.step[prefill prefill_requests=3 prefill_tokens=21]": 1,
        "tracekit.step[decode decode_requests=1 decode_tokens=1]": 4,
        "tracekit.step[decode decode_requests=3 decode_tokens=3]": 4,
    }
