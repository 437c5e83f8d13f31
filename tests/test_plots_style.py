"""Colours: each category and cause has its own, which those who see colours otherwise can tell apart, too."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.plot_axes import unit_of
from tracekit.plot_style import CAUSE_STYLES, OTHER_BUSY, OTHER_IDLE, STYLES, Fill, fill_of, idle_fill

FILLS = {**{name: fill_of(name) for name in STYLES}, **CAUSE_STYLES, "busy": OTHER_BUSY, "idle": OTHER_IDLE}
_LEAST = 11.0  # of CIE 1976; 2.3 is what one can just tell side by side
# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009), in
# linear light: without red, green or blue cones, and as it is.
_SIGHTS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}
_TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
_WHITE = (0.95047, 1.0, 1.08883)
_Vector = npt.NDArray[np.float64]


def seen(colour: str, sight: str) -> _Vector:
    """Lightness and two hues (CIE L*a*b*) of a colour, to eyes of that kind."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    light = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    light = np.clip(np.array(_SIGHTS[sight]) @ light, 0, 1)
    xyz = np.array(_TO_XYZ) @ light / np.array(_WHITE)
    curve = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * curve[1] - 16, 500 * (curve[0] - curve[1]), 200 * (curve[1] - curve[2])])


def test_every_cause_has_a_style_of_its_own() -> None:
    assert CAUSE_STYLES.keys() == MEANINGS.keys()
    assert len(set(FILLS.values())) == len(FILLS)
    assert idle_fill("of another version") == CAUSE_STYLES["unattributed"]
    assert fill_of("of a user's rules") == fill_of("other")


@pytest.mark.parametrize("sight", _SIGHTS)
def test_areas_of_one_hatch_are_told_apart_by_colour(sight: str) -> None:
    alike = [
        (one, other)
        for one, other in combinations(FILLS, 2)
        if (FILLS[one].hatch, FILLS[one].line) == (FILLS[other].hatch, FILLS[other].line)
    ]
    near = [
        pair
        for pair in alike
        if np.linalg.norm(seen(FILLS[pair[0]].colour, sight) - seen(FILLS[pair[1]].colour, sight)) < _LEAST
    ]
    assert near == []
    assert len(alike) > 40


def test_idle_time_is_paler_than_work() -> None:
    lightness = {name: seen(fill.colour, "all cones")[0] for name, fill in FILLS.items()}
    yellow = {name for name, style in STYLES.items() if style.colour == "#F0E442"}  # whose hatch is white
    assert min(lightness[name] for name in MEANINGS) > max(lightness[name] for name in STYLES.keys() - yellow) - 5
    assert {fill.line for fill in CAUSE_STYLES.values()} == {"#6A6A6A"}
    assert all(isinstance(fill, Fill) and fill.line == "#FFFFFF" for fill in map(fill_of, STYLES))


@pytest.mark.parametrize(
    ("ns", "unit"), [(0, "ns"), (99, "ns"), (100, "us"), (1_499_999, "us"), (1_500_000, "ms"), (2e9, "s"), (9e12, "s")]
)
def test_units_of_axes(ns: float, unit: str) -> None:
    assert unit_of(ns).name == unit
