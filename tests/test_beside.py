"""What is given beside a trace: read at once, and named again as on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_configs import TINY
from tracekit.beside import Beside, Given
from tracekit.errors import UsageError

DEVICE = '[[device]]\nnames = ["{name}"]\nsms = 5\nbandwidth_gbs = 100\n'


def test_nothing_given() -> None:
    assert Given().read() == Beside()
    assert (Given().files, Given().options) == ((), ())


def test_all_of_it(tmp_path: Path) -> None:
    """Files of devices go in the order in which they are given; captures are not opened yet."""
    tables = [tmp_path / f"{name}.toml" for name in ("b", "a")]
    for table in tables:
        table.write_text(DEVICE.format(name=table.stem))
    model = tmp_path / "a config.json"
    model.write_text(json.dumps(TINY))
    capture = tmp_path / "start.json"
    capture.touch()
    given = Given(
        device_spec=tuple(tables),
        peaks={"bf16": 989e12, "fp8": 123456789012345.6, "achievable.bf16": 0.8},
        capture_trace=(capture,),
        model=model,
        tensor_parallel=2,
    )
    assert given.files == (*tables, capture, model)
    assert given.options == (
        *("--device-spec", str(tables[0]), "--device-spec", str(tables[1])),
        *("--peak", "bf16=9.89e+14", "--peak", "fp8=123456789012345.6", "--peak", "achievable.bf16=0.8"),
        *("--capture-trace", str(capture), "--model", str(model), "--tensor-parallel", "2"),
    )
    read = given.read()
    assert [spec.names for spec in read.specs] == [("b",), ("a",)]
    assert (read.peaks, read.captures, read.tensor_parallel, read.given) == (
        given.peaks,
        (capture,),
        2,
        given.options,
    )
    assert read.model is not None and read.model.layers == TINY["num_hidden_layers"]


def test_peaks_as_text() -> None:
    given = Given(peaks={"bf16": "989T", "bandwidth": "3.35TB/s"})
    assert given.read().peaks == {"bf16": 989e12, "bandwidth": 3.35e12}
    assert given.options == ("--peak", "bf16=9.89e+14", "--peak", "bandwidth=3.35e+12")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"peaks": {"speed": 1e12}}, "unknown peak 'speed'"),
        ({"peaks": {"bf16": "989TB"}}, "peak bf16=989TB: bf16 is in FLOP/s"),
        ({"peaks": {"bf16": float("nan")}}, "bf16 must be from"),
        ({"peaks": {"bandwidth": 0.0}}, "bandwidth must be from"),
        ({"tensor_parallel": 0}, "tensor parallelism of 0"),
        ({"capture_trace": (Path("/absent/start.json"),)}, "/absent/start.json: no such file"),
        ({"model": Path("/absent/config.json")}, "/absent/config.json: cannot be read"),
        ({"device_spec": (Path("/absent/mine.toml"),)}, "/absent/mine.toml: cannot be read"),
    ],
)
def test_mistakes_are_told_when_it_is_read(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as told:
        Given(**given).read()
    assert said in str(told.value)
