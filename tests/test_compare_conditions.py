"""What else is different between two sides: each condition as the sentence that says so."""

from __future__ import annotations

from tests.compare_recordings import DECODE, GEMM, recording, steps
from tracekit.analyses._idle_summary import Losses
from tracekit.compare_conditions import conditions, label, warnings
from tracekit.compare_measure import WHOLE, Key, Recording

PREFILL: Key = ("prefill", "1, <=64 tok")
TEN = steps({GEMM: [100] * 10})


def texts(base: Recording | list[Recording], candidate: Recording | list[Recording]) -> list[str]:
    sides = [side if isinstance(side, list) else [side] for side in (base, candidate)]
    return [one.text for one in conditions(sides[0], sides[1])]


def test_nothing_and_the_same_thing_twice() -> None:
    assert texts(recording(), recording()) == []
    one = recording(TEN, settings={"CUDA": "12.9", "device": "1 x H100"}, waited_ns=5_000)
    assert texts(one, one) == texts([one, one], one) == []


def test_settings_that_differ() -> None:
    base = {"device": "1 x H100", "CUDA": "12.4", "Python stacks recorded": "no", "vLLM": "0.9", "command": "serve a"}
    candidate = {**base, "device": "1 x H200", "CUDA": "12.9", "Python stacks recorded": "yes", "command": "serve b"}
    assert texts(recording(TEN, settings=base), recording(TEN, settings=candidate)) == [
        "device: 1 x H100 in base, 1 x H200 in candidate",
        "CUDA: 12.4 in base, 12.9 in candidate",
        "Python stacks recorded in candidate, not in base, which slows the host and tells python from causes that "
        "it is taken for without",
        "command: serve a in base, serve b in candidate",
    ]


def test_what_one_side_does_not_tell_is_not_known_to_differ() -> None:
    assert texts(recording(TEN, settings={"torch": "2.9"}), recording(TEN)) == []


def test_kinds_of_steps_that_one_side_has() -> None:
    other = steps({GEMM: [1] * 3}, key=PREFILL)
    few = [steps({GEMM: [1]}, key=("decode", str(batch))) for batch in (1, 2, 4, 8, 16)]
    assert texts(recording(TEN, other), recording(TEN, *few)) == [
        "only in base: prefill 1, <=64 tok (3 steps)",
        "only in candidate: decode 1 (1 step), decode 2 (1 step), decode 4 (1 step), decode 8 (1 step) and 1 more",
        "share of steps in decode: 77% in base, 100% in candidate",
        "share of steps in prefill: 23% in base, 0% in candidate",
    ]


def test_batches_within_a_bucket() -> None:
    smaller, alike, unknown = (steps({GEMM: [100] * 10}, requests=requests) for requests in (5.0, 7.7, None))
    assert texts(recording(TEN), recording(smaller)) == [
        "batch of decode 5-8: 8.0 requests in base, 5.0 in candidate",
        "batch of decode 5-8: 8.0 tokens in base, 5.0 in candidate",
    ]
    assert texts(recording(TEN), recording(alike)) == texts(recording(TEN), recording(unknown)) == []


def test_a_batch_is_the_mean_over_all_steps_of_a_side() -> None:
    base = [recording(TEN), recording(steps({GEMM: [1] * 30}, requests=6.0))]
    assert texts(base, recording(TEN))[0] == "batch of decode 5-8: 6.5 requests in base, 8.0 in candidate"


def test_load() -> None:
    assert texts(recording(TEN), recording(TEN, waited_ns=1_000)) == [
        "load: the host waited for requests 0% of the time in base, 50% in candidate; that is in no step time"
    ]
    assert texts(recording(TEN), recording(TEN, waited_ns=40)) == []


def test_first_steps_are_not_steady_ones() -> None:
    cold = steps({GEMM: [100] * 10}, is_steady=False)
    assert texts(recording(cold), recording(TEN)) == [
        "decode 5-8: first or warm-up steps in base, steady steps in candidate"
    ]


def test_warnings_are_of_single_recordings_and_of_what_a_side_mixes() -> None:
    lossy = recording(
        TEN, name="a", losses=Losses(refusal="9 launches left nothing", doubt=""), settings={"CUDA": "12"}
    )
    short = recording(TEN, name="b", warnings=("it was cut short",), settings={"CUDA": "13"})
    assert warnings([lossy, short, short], [recording(TEN)]) == (
        "a: 9 launches left nothing",
        "b: it was cut short",
        "recordings of base are not alike, CUDA: 12, 13",
    )


def test_labels() -> None:
    keys: list[Key] = [DECODE, ("decode", "unknown"), ("unknown", "unknown"), ("unknown", "0"), WHOLE]
    assert [*map(label, keys)] == ["decode 5-8", "decode", "steps", "batch 0", "whole recording"]
