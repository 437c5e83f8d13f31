"""The roofline plot: what it shows and leaves out, no label over another, the same file each time, names as data."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.roofline_rows import MS, Row, group, h100, result, unknown
from tracekit.classify import CATEGORIES
from tracekit.errors import UsageError
from tracekit.plot_labels import Box, Wanted, leader, place_labels
from tracekit.plot_style import STYLES, check_suffix, plain, save_figure, si, style_of
from tracekit.roofline_panel import Roof, panel_of
from tracekit.roofline_plot import roofline_figure

NAMES = (
    "nvjet_tst_192x208_64x4_2x1_v_bz_coopB_bias_TNN",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >()",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x",
    "$\\frac{a}{b}$_not_mathematics_\x1b[31m_名",
)


def many(count: int) -> list[Row]:
    """Groups all over the picture, some of them nearly in one place; each fifth without FLOPs."""
    draw = random.Random(count)
    rows = []
    for at in range(count):
        intensity = 10 ** draw.uniform(-1, 3) if at % 3 else 700.0
        flops = min(989e12, 3.35e12 * intensity) * (draw.uniform(0.1, 1) if at % 3 else 0.62)
        row = group(
            **{"kernel": NAMES[at % 4], "op": "aten::mm", "category": CATEGORIES[at % 28], "evidence": "B"},
            **{"dur_ns": round(10 ** draw.uniform(5, 6)), "math": "bf16", "roof_fraction": 0.5, "example_id": at},
        )
        seconds = row["dur_ns"] / 1e9
        row |= {"achieved_flops": flops, "intensity": intensity, "flops": flops * seconds}
        if at % 5 == 4:
            row |= {"flops": 0.0, "intensity": None, "achieved_flops": None, "achieved_bandwidth": flops / 1e3}
        rows.append(row)
    return rows


def labels(figure: Figure) -> list[Text]:
    return [text for axes in figure.axes for text in axes.texts if text.get_gid() == "label"]


# ---- nothing, and what goes where ------------------------------------------------------------------------------------


def test_nothing_recorded() -> None:
    """Then there is no file either."""
    with pytest.raises(UsageError, match="nothing to plot: nothing was recorded"):
        roofline_figure(result([], [], "nothing was recorded"))


def test_an_idle_device() -> None:
    panel = panel_of([], h100(busy_ns=0))
    assert (panel.points, panel.strip) == ((), ())
    assert [roof.name for roof in panel.roofs] == ["bf16, fp16", "fp32"]
    assert panel.caption == ("0 kernel groups, 0.0% of 0 us busy time",)


def test_nothing_to_compare() -> None:
    """Roofs that are known are drawn, and it is said; without them there are no axes that would show nothing."""
    (axes,) = roofline_figure(result([group(evidence="F")], [h100()])).axes
    said = "No kernel group has FLOPs and bytes: nothing to compare with these roofs."
    assert said in [text.get_text() for text in axes.texts]
    low, high = axes.get_xlim()
    assert low < 67e12 / 3.35e12 and high > 989e12 / 3.35e12  # from ridge to ridge
    figure = roofline_figure(result([group(evidence="F")], [unknown()]))
    assert (figure.axes, figure.texts[-1].get_text()) == ([], "No kernel group has FLOPs and bytes.")
    copies = group(kernel="Memcpy DtoD (Device -> Device)", category="memory", bytes=2e9, evidence="G")
    (strip,) = roofline_figure(result([copies], [unknown()])).axes
    assert strip.get_xlabel() == "achieved bandwidth of groups without FLOPs"


def test_what_is_shown_of_a_device() -> None:
    """1e12 FLOPs and 1e9 bytes in 4 ms; copies on the strip; the rest is said, not shown."""
    rows = [
        group(
            **{"kernel": "void ns::gemm<int>(int)", "op": "aten::mm", "math": "bf16", "evidence": "B"},
            **{"dur_ns": 4 * MS, "flops": 1e12, "bytes": 1e9, "roof_fraction": 0.316, "example_id": 1},
        ),
        group(kernel="Memcpy DtoD (Device -> Device)", category="memory", bytes=2e9, evidence="G", example_id=2),
        group(kernel="nccl", category="communication", dur_ns=2 * MS, achieved_bandwidth=1e11, example_id=3),
        group(kernel="far", math="fp16", flops=1e15, bytes=1e9, problem="above roof", evidence="B", example_id=4),
        group(kernel="bare", evidence="F", example_id=5),
        group(kernel="idle", evidence="B", flops=1.0, bytes=0.0, dur_ns=1 * MS, example_id=6),
    ]
    panel = panel_of(rows, h100(above_roof_ns=1 * MS))
    assert panel.title == "Roofline of NVIDIA H100 80GB HBM3, rank 0 device 0"
    assert panel.caption == (
        "3 kernel groups, 50.0% of 10.0 ms busy time + 10.0% without FLOPs (strip below); not shown: communication "
        "20.0%, no evidence 10.0%, no figures 10.0%",
        "10.0% of the time is above a roof, which cannot be: wrong device, wrong shapes, or caches",
    )
    assert [(point.x, point.y, point.share, point.is_error) for point in panel.points] == [
        (1000.0, 2.5e14, 0.4, False),
        (1e6, 1e18, 0.1, True),
    ]
    assert [point.label for point in (*panel.points, *panel.strip)] == [
        "mm\n40.0% of time, 32% of roof",
        "far\n10.0% of time, above roof: error",
        "Memcpy DtoD\n10.0% of time",
    ]
    assert [point.x for point in panel.strip] == [2e12]
    assert panel.bandwidth == Roof("memory", 3.35e12, 0.9 * 3.35e12)
    assert panel.roofs == (Roof("bf16, fp16", 989e12, 0.8 * 989e12),)
    quiet = panel_of(rows, h100(above_roof_ns=1 * MS), found=0.2)  # no finding, no alarm
    assert (len(quiet.caption), quiet.points[1].is_error, quiet.points[1].label) == (1, False, "far\n10.0% of time")
    assert panel.span_y[0] < 2.5e14 and panel.span_y[1] > 1e18 and panel.span_x[1] > 1e6


def test_no_roofs_where_the_device_is_unknown() -> None:
    panel = panel_of([group(math="bf16", flops=1e12, bytes=1e9, evidence="B")], unknown())
    assert (panel.bandwidth, panel.roofs, len(panel.points)) == (None, (), 1)
    assert panel.caption[1] == "missing roofs: The trace has no device name"
    assert panel.title == "Roofline of a device without a name, rank 0 device 0"


def test_broken_figures_do_not_press_the_rest_into_a_corner() -> None:
    figures = ((1e12, 1e9), (1e12, 1e-100), (float("inf"), 1e9), (float("nan"), 1e9), (-1.0, 1e9))
    rows = [group(math="bf16", flops=flops, bytes=moved, evidence="B") for flops, moved in figures]
    panel = panel_of(rows, h100())
    assert [point.x for point in panel.points] == [1000.0]
    assert panel.caption == ("1 kernel group, 10.0% of 10.0 ms busy time; not shown: no figures 40.0%",)
    assert roofline_figure(result(rows, [h100()])).axes


def test_devices_that_are_chosen() -> None:
    summary = [h100(rank=rank, device=rank % 4) for rank in range(9)]
    titles = [
        text.get_text()
        for text in roofline_figure(result([], summary), device=0).texts
        if "Roofline" in text.get_text()
    ]
    assert [title.partition(", ")[2] for title in titles] == [f"rank {rank} device 0" for rank in (0, 4, 8)]
    with pytest.raises(UsageError, match=r"no such device to plot; there are: rank 0 device 0, rank 1"):
        roofline_figure(result([], summary), rank=9)
    with pytest.raises(UsageError, match="9 devices are too many for one plot"):
        roofline_figure(result([], summary))


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8, 40, 150])
def test_no_label_touches_another_or_leaves_the_picture(count: int) -> None:
    rows = many(count)
    figure = roofline_figure(result(rows, [h100(busy_ns=sum(row["exclusive_ns"] for row in rows))]), labels=12)
    boxes = [text.get_window_extent() for text in labels(figure)]
    assert len(boxes) >= min(count, 8)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_places_of_labels() -> None:
    """Beside its marker; the second one makes way; one that cannot fit has no place."""
    area = Box(0, 0, 200, 100)
    marker = Box(45, 45, 55, 55)
    first, second, wide = place_labels(
        [Wanted(40, 10, 50, 50, 5), Wanted(40, 10, 50, 50, 5), Wanted(300, 10, 50, 50, 5)], area, [marker]
    )
    assert first and second and wide is None
    assert first.inside(area) and second.inside(area)
    assert not (first.overlaps(second) or first.overlaps(marker) or second.overlaps(marker))
    line = (first.left, first.bottom + 5, first.right, first.bottom + 5)
    (kept_off,) = place_labels([Wanted(40, 10, 50, 50, 5)], area, [marker], [line])
    assert kept_off and not kept_off.inside(first.grown(1))
    everywhere = [(0.0, y, 200.0, y) for y in range(0, 101, 5)]
    assert place_labels([Wanted(40, 10, 50, 50, 5)], area, [marker], everywhere) == [first]  # if there is no other
    assert place_labels([Wanted(40, 10, 50, 50, 5, anywhere=False)], area, [marker], everywhere) == [None]


def test_a_leader_crosses_no_other_marker() -> None:
    """The way to the right is barred by a row of them."""
    bars = [Box(60, y, 70, y + 10) for y in range(-5, 100, 5)]
    one = Wanted(40, 10, 50, 50, 5)
    (box,) = place_labels([one], Box(0, 0, 200, 100), [Box(45, 45, 55, 55), *bars])
    assert box and box.right <= 60
    assert place_labels([one], Box(46, 0, 200, 100), [Box(45, 45, 55, 55), *bars]) == [None]
    assert leader(Box(100, 45, 140, 55), one) == (55, 50, 100, 50)  # from its edge on


def test_who_finds_no_place_may_choose_first() -> None:
    """Both want the right; the first could go elsewhere, the second could not."""
    area = Box(0, 0, 100, 30)
    wanted = [Wanted(30, 10, 40, 8, 2), Wanted(50, 10, 40, 22, 2)]
    markers = [Box(38, 6, 42, 10), Box(38, 20, 42, 24), Box(0, 16, 20, 30)]
    first, second = place_labels(wanted, area, markers)
    assert first and second and not first.overlaps(second)


def test_a_leader_crosses_no_label() -> None:
    """The right of the second marker is free, yet the way there leads through the first label."""
    area = Box(0, 0, 400, 14)
    first, second = place_labels([Wanted(100, 10, 105, 7, 2), Wanted(100, 10, 100, 7, 2)], area, [Box(98, 5, 107, 9)])
    assert first and (round(first.left), round(first.right)) == (109, 209)
    assert second is None


def test_names_from_a_trace_are_data() -> None:
    assert plain("a\x1b[31m名\n" + "x" * 50, 30) == r"a\x1b[31m\u540d\nxxxxxxxxxx..."
    row = group(kernel="$\\frac{", op="x::$_", math="bf16", flops=1e12, bytes=1e9, evidence="B", dur_ns=10 * MS)
    figure = roofline_figure(result([row], [h100(name="$GPU_{")]))
    assert "$_\n100.0% of time" in [text.get_text() for text in labels(figure)]
    figure.canvas.draw()


# ---- colours, files --------------------------------------------------------------------------------------------------


def test_each_category_looks_like_no_other() -> None:
    assert STYLES.keys() == set(CATEGORIES)
    assert len({(style.colour, style.marker) for style in STYLES.values()}) == len(STYLES)
    assert style_of("of a user's rules") == STYLES["other"]


@pytest.mark.parametrize(
    "value, text", [(0, "0 B/s"), (999, "999 B/s"), (1e3, "1 kB/s"), (3.35e12, "3.35 TB/s"), (989.4e12, "989 TB/s")]
)
def test_units(value: float, text: str) -> None:
    assert si(value, "B/s") == text


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_result_is_the_same_file(tmp_path: Path, suffix: str) -> None:
    """Whatever the user's style is; which, like the backend, is as it was."""
    path, again = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    shown = result(many(5), [h100()])
    save_figure(roofline_figure(shown), str(path))
    backend = dict.__getitem__(matplotlib.rcParams, "backend")  # to ask rcParams for it chooses one
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 20, "svg.fonttype": "none"}):
        save_figure(roofline_figure(shown), again)
        assert matplotlib.rcParams["font.size"] == 20
        assert dict.__getitem__(matplotlib.rcParams, "backend") == backend
    assert path.read_bytes() == again.read_bytes()
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert suffix == ".png" or b"<dc:date>" not in path.read_bytes()


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plot\.jpg: a plot is written as \.png or \.svg"):
        save_figure(Figure(), tmp_path / "plot.jpg")
    check_suffix(tmp_path / "plot.SVG")
