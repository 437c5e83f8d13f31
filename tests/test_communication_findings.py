"""communication: what its times say, and what could be saved at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tests.arithmetic import check
from tests.communication_rows import Call, decode, gemm, recorded
from tests.event_rows import write_trace
from tracekit.analyses import _communication_texts as texts
from tracekit.analyses._communication_cases import Case, Messages
from tracekit.analyses._communication_findings import Limits, findings
from tracekit.analysis import Finding
from tracekit.report_communication import in_full
from tracekit.text_page import Page
from tracekit.trace import Trace

LIMITS = Limits(
    exposed_share=0.1,
    critical_share=0.3,
    finding_share=0.05,
    last_share=0.6,
    small_bytes=1 << 20,
    latency_share=0.25,
    bandwidth_share=0.5,
)
LINK = 100e9  # bytes per second, so 100 bytes a nanosecond
US = 1_000


def messages(message: int | None = 4096, **changes: Any) -> Messages:
    """Ten all-reduces of 4 kB that take 100 us in all, of which 40 are waiting for rank 1. Nothing covers them."""
    given: dict[str, Any] = {
        "group": "1",
        "collective": "all_reduce",
        "subcategory": "collective",
        "dtype": "BFloat16",
        "message": message,
        "count": 10,
        "matched": 10,
        "alone_ns": 100 * US,
        "exposed_ns": 100 * US,
        "exposed_wait_ns": 40 * US,
        "wait_ns": 40 * US,
        "transfer_ns": 60 * US,
        "link_bytes": 10 * (message or 0),
        "carrying_ns": 60 * US if message else 0,
        "waits": {1: 40 * US},
        "examples": (7,),
    }
    return Messages(**{**given, **changes})


def unmatched(message: int | None = 4096, **changes: Any) -> Messages:
    """The same on one rank alone."""
    nothing = {"exposed_wait_ns": 0, "wait_ns": 0, "transfer_ns": 0, "link_bytes": 0, "carrying_ns": 0}
    return messages(message, **{"matched": 0, **nothing, "waits": {}, **changes})


def case(*of: Messages, total_us: int = 1_000, rank: int = 0, phase: str = "decode", steps: int = 5) -> Case:
    return Case(rank, rank, phase, steps, total_us * US, of, "CALLS", "SPAN")


def found(*cases: Case, link: float | None = LINK) -> list[Finding]:
    links = {} if link is None else {(one.rank, one.device): link for one in cases}
    said = list(findings(cases, links, LIMITS))
    for finding in said:
        check(finding)
    return said


def titles(*cases: Case, link: float | None = LINK) -> list[str]:
    return [finding.title for finding in found(*cases, link=link)]


def test_nothing_to_say() -> None:
    assert found() == found(case()) == found(case(messages(), total_us=0)) == []
    assert found(case(messages(), total_us=10_000)) == []


def test_one_rank_alone_is_exposed_and_no_more_can_be_told() -> None:
    (finding,) = found(case(unmatched(8 << 20)))
    assert finding == Finding(
        severity="warning",
        title="exposed communication takes 20.0 us per decode step, 10.0% of its time",
        detail="Mostly all_reduce of 8 MiB (2 a step, 100 us exposed in all). Nothing else ran on the device "
        "meanwhile. How much of it is waiting for other ranks cannot be told from this trace.",
        saving_low_ns=0,
        saving_high_ns=100_000,
        evidence=(7,),
        remedy=texts.EXPOSED.remedy + texts.SEND_LESS["all_reduce"],
        cost=texts.EXPOSED.cost,
        verify=texts.EXPOSED.verify,
        arithmetic=(
            'exposed: tracekit sql TRACE "SELECT sum(exposed_ns) FROM CALLS" = 100,000 ns',
            "of each step: 100,000 ns / 5 steps = 20,000 ns",
            'time of the steps: tracekit sql TRACE "SPAN" = 1,000,000 ns',
            "share: 100,000 ns / 1,000,000 ns = 10.0%",
            "saving: at least 0 ns, at most 100,000 ns",
        ),
    )


def test_waiting_for_one_rank_is_told_apart() -> None:
    exposed, waiting = found(case(messages(8 << 20, link_bytes=5_000_000), total_us=400))
    assert (exposed.title, exposed.saving_high_ns, exposed.arithmetic[4:]) == (
        "exposed communication takes 20.0 us per decode step, 25.0% of its time",
        60_000,
        ("without waiting: 100,000 ns - 40,000 ns = 60,000 ns", "saving: at least 0 ns, at most 60,000 ns"),
    )
    assert "Of it 40.0 us is waiting for ranks that came later." in exposed.detail
    assert (waiting.severity, waiting.title, waiting.saving_high_ns) == (
        "warning",
        "waiting for rank 1 in collectives takes 8.00 us per decode step, 10.0% of its time",
        40_000,
    )
    assert waiting.detail.startswith("100.0% of it is for rank 1, which came last. Mostly in all_reduce of 8 MiB ")
    assert "idle_gaps and attribution with --rank 1" in waiting.remedy
    assert waiting.arithmetic == (
        'exposed waiting: tracekit sql TRACE "SELECT sum(exposed_wait_ns) FROM CALLS" = 40,000 ns',
        "of each step: 40,000 ns / 5 steps = 8,000 ns",
        'time of the steps: tracekit sql TRACE "SPAN" = 400,000 ns',
        "share: 40,000 ns / 400,000 ns = 10.0%",
        "for rank 1: 40,000 ns / 40,000 ns = 100.0%",
        "saving: at least 0 ns, at most 40,000 ns",
    )


def test_waiting_for_all_of_them_names_none() -> None:
    jitter = messages(8 << 20, link_bytes=5_000_000, waits={1: 15 * US, 2: 10 * US, 3: 15 * US})
    _, waiting = found(case(jitter, total_us=400))
    assert waiting.title.startswith("waiting for other ranks in collectives takes 8.00 us per decode step")
    assert waiting.detail.startswith("37.5% of it is for rank 1, ")
    assert waiting.remedy.startswith(texts.NOBODY_LAST)


def test_the_device_with_the_largest_share_is_told() -> None:
    worse = messages(8 << 20, link_bytes=5_000_000, exposed_ns=200 * US)
    assert titles(case(messages(None)), case(worse, rank=1), case(rank=2)) == [
        "exposed communication takes 40.0 us per decode step, 20.0% of its time on rank 1 device 1, the worst of 2"
    ]
    assert titles(case(), case(worse, rank=1))[0].endswith("20.0% of its time on rank 1 device 1")


def test_small_messages_that_do_not_fill_the_links() -> None:
    """40,960 bytes take 410 ns at 100 GB/s, not 60 us."""
    _, _, small = found(case(messages(), total_us=400))
    assert (small.severity, small.title, small.saving_high_ns) == (
        "warning",
        "collectives of small messages, up to 4 KiB, take 12.0 us per decode step, 15.0% of its time",
        60_000,
    )
    assert small.detail == (
        "Mostly all_reduce of 4 KiB (2 a step, 100 us exposed in all); 6.00 us each without waiting. Their bytes alone "
        "would take 0.041 us on the links. What they take is latency, not bandwidth."
    )
    assert small.arithmetic == (
        "exposed transfer of small messages: 100,000 ns - 40,000 ns = 60,000 ns",
        "of each step: 60,000 ns / 5 steps = 12,000 ns",
        'time of the steps: tracekit sql TRACE "SPAN" = 400,000 ns',
        "share: 60,000 ns / 400,000 ns = 15.0%",
        "of each message: 60,000 ns / 10 messages = 6,000 ns",
        "at the peak of the links: 40,960 bytes / 100 bytes/ns = 410 ns",
        "saving: at least 0 ns, at most 60,000 ns",
    )


def test_small_messages_by_their_sizes_where_the_links_are_not_known() -> None:
    """Of 64 kB, in another phase, they take no longer: 6.5 us to 6."""
    larger = case(messages(64 << 10, transfer_ns=65 * US), phase="prefill", total_us=100_000)
    (small,) = [one for one in found(case(messages(), total_us=400), larger, link=None) if "small" in one.title]
    assert "6.00 us each without waiting. Messages of 64 KiB take about as long." in small.detail
    slower = case(messages(64 << 10, transfer_ns=95 * US), phase="prefill", total_us=100_000)
    assert not any("small" in one for one in titles(case(messages(), total_us=400), slower, link=None))


def test_an_all_reduce_of_the_engine_is_not_recommended_again() -> None:
    *_, small = found(case(messages(subcategory="custom_allreduce"), total_us=400))
    assert small.remedy.startswith(texts.OWN_ALREADY)


def test_large_messages_that_do_not_fill_the_links() -> None:
    """1.2 MB in 60 us are 20 GB/s: at 100 a fifth of the 60 us is left."""
    *_, slow = found(case(messages(2 << 20, link_bytes=1_200_000), total_us=400))
    assert (slow.title, slow.saving_high_ns) == (
        "collectives of large messages reach 20.0% of the links' bandwidth: 9.60 us per decode step, 12.0% of its time "
        "more than at the peak",
        48_000,
    )
    assert slow.arithmetic == (
        "bandwidth: 1,200,000 bytes / 60,000 ns = 20.0 bytes/ns",
        "of the peak: 1,200,000 bytes / 60,000 ns / 100 bytes/ns = 20.0%",
        "exposed transfer: 100,000 ns - 40,000 ns = 60,000 ns",
        "at the peak: 60,000 ns * 1,200,000 bytes / 60,000 ns / 100 bytes/ns = 12,000 ns",
        "beyond the peak: 60,000 ns - 12,000 ns = 48,000 ns",
        "of each step: 48,000 ns / 5 steps = 9,600 ns",
        'time of the steps: tracekit sql TRACE "SPAN" = 400,000 ns',
        "share: 48,000 ns / 400,000 ns = 12.0%",
        "saving: at least 0 ns, at most 48,000 ns",
    )
    assert not any("large" in one for one in titles(case(messages(2 << 20, link_bytes=3_000_000), total_us=400)))


def test_a_trace_without_steps_is_judged_by_its_span() -> None:
    (finding,) = found(case(unmatched(None), phase="unknown", steps=0))
    assert finding.title == "exposed communication takes 100 us, 10.0% of the span"
    assert finding.arithmetic[1:3] == (
        'span: tracekit sql TRACE "SPAN" = 1,000,000 ns',
        "share: 100,000 ns / 1,000,000 ns = 10.0%",
    )


@pytest.mark.parametrize(
    ("collective", "message", "remedy"),
    [
        ("all_to_all", None, texts.EXPOSED.remedy + texts.SEND_LESS["dispatch"]),
        ("all_gather", None, texts.EXPOSED.remedy + texts.SEND_LESS_OF_OTHERS),
        ("all_reduce", 4096, f"Most of it is of messages up to 1 MiB. {texts.SMALL.remedy} {texts.EXPOSED.remedy}"),
    ],
)
def test_remedies_fit_what_is_sent(collective: str, message: int | None, remedy: str) -> None:
    (finding,) = found(case(unmatched(message, collective=collective)))
    assert finding.remedy.startswith(remedy)


TIMES = st.lists(
    st.tuples(
        st.sampled_from([None, 4096, 2 << 20]),
        st.integers(0, 100),
        st.integers(0, 100),
        st.integers(0, 100),
        st.integers(0, 9_000_000),
        st.sampled_from(["prefill", "decode"]),
        st.integers(0, 1),
    ),
    max_size=6,
)


@given(TIMES)
def test_no_nanosecond_is_promised_twice(drawn: Sequence[tuple[Any, ...]]) -> None:
    """On each device and phase all findings together promise no more than is exposed there."""
    cases: list[Case] = []
    for phase in ("prefill", "decode"):
        for rank in (0, 1):
            here = [
                messages(
                    size,
                    exposed_ns=wait + rest,
                    exposed_wait_ns=wait,
                    wait_ns=wait,
                    waits={0: wait},
                    transfer_ns=rest + hidden,
                    link_bytes=sent if size else 0,
                    carrying_ns=rest + hidden if size else 0,
                )
                for size, wait, rest, hidden, sent, of_phase, of_rank in drawn
                if (of_phase, of_rank) == (phase, rank)
            ]
            cases.append(case(*here, total_us=1, rank=rank, phase=phase, steps=2))
    for phase in ("prefill", "decode"):
        here_cases = [one for one in cases if one.phase == phase]
        for rank in (0, 1):
            alone = [one for one in here_cases if one.rank == rank]
            assert sum(one.saving_high_ns for one in found(*alone)) <= sum(one.exposed_ns for one in alone)
        most = max(one.exposed_ns for one in here_cases)
        assert all(one.saving_high_ns <= most for one in found(*here_cases))


# ---- from rows to text -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    """Three decode steps of two ranks, each 80 us of GEMM and an all-reduce; rank 1 comes 30 us late."""
    calls, others = [], []
    for step in range(3):
        start = 200_000 * step
        calls += [Call(0, start + 80_000, 50_000, step=step), Call(1, start + 110_000, 20_000, step=step)]
        others += [gemm(0, start, 80_000, step), gemm(1, start + 30_000, 80_000, step)]
        others += [decode(rank, step, start) for rank in (0, 1)]
    path = write_trace(tmp_path_factory.mktemp("served") / "trace.parquet", recorded(calls, *others))
    with tracekit.open(path, peaks={"link": 450e9}) as trace:
        yield trace


def test_steady_steps_add_up_by_phase(served: Trace) -> None:
    """All but the first one."""
    result = served.analyze("communication")
    assert result.summary[0] == {
        "rank": 0,
        "device": 0,
        "span_ns": 530_000,
        "busy_ns": 390_000,
        "communication_ns": 150_000,
        "exposed_ns": 150_000,
        "wait_ns": 90_000,
        "transfer_ns": 60_000,
        "by_phase": [
            {
                "phase": "decode",
                "steps": 2,
                "step_ns": 400_000,
                "communication_ns": 100_000,
                "exposed_ns": 100_000,
                "wait_ns": 60_000,
                "share": 0.25,
            }
        ],
    }


def test_steady_steps_are_judged(served: Trace) -> None:
    result = served.analyze("communication")
    for finding in result.findings:
        check(finding, served)
    assert [(finding.title, finding.saving_high_ns) for finding in result.findings] == [
        (
            "exposed communication takes 50.0 us per decode step, 25.0% of its time on rank 0 device 0, the worst of 2",
            0,
        ),
        (
            "waiting for rank 1 in collectives takes 30.0 us per decode step, 15.0% of its time on rank 0 device 0",
            60_000,
        ),
        (
            "collectives of small messages, up to 2 KiB, take 20.0 us per decode step, 10.0% of its time on rank 0 "
            "device 0, the worst of 2",
            40_000,
        ),
    ]


def test_text_of_all_steps(served: Trace) -> None:
    page = Page("trace.parquet", [], 100, "#", True)
    assert [line.plain for line in in_full(page, served.analyze("communication"))][:5] == [
        "rank 0 device 0: communicates for 150 us, 150 us of it exposed; 90.0 us waiting, 60.0 us transfer",
        "  decode, 2 steady steps: 50.0 us exposed per step, 25.0% of its time",
        "collective  group        message   times    time  exposed  waiting  transfer   GB/s",
        "all_reduce  1 (2 ranks)  <= 2 KiB      3  150 us   150 us  90.0 us   60.0 us  0.102",
        "rank 1 device 1: communicates for 60.0 us, 60.0 us of it exposed; 0 us waiting, 60.0 us transfer",
    ]


def test_text_of_nothing_says_why(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [gemm(0, 0, 10)])) as trace:
        shown = in_full(Page("trace.parquet", [], 60, "#", True), trace.analyze("communication"))
    assert [line.plain for line in shown] == ["  no communication in this trace"]
