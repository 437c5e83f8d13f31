"""What the user gives beside a trace: measurements, figures of the device, traces with shapes, the model served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.counters import Counters
from tracekit.errors import UsageError
from tracekit.inputs import PathLike, counters_in, paths_of

if TYPE_CHECKING:
    from tracekit.device_spec import DeviceSpec
    from tracekit.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Beside:
    """counters: of Nsight Compute. specs: devices of the user's own tables, in order. peaks: figures that go before all
    tables, by name. captures: traces of the same server with shapes. model: what is served, on tensor_parallel devices.
    given: the options that name all this, as on the command line. files: those among it.
    """

    counters: Counters | None = None
    specs: tuple[DeviceSpec, ...] = ()
    peaks: Mapping[str, float] = field(default_factory=dict)
    captures: tuple[Path, ...] = ()
    model: ModelConfig | None = None
    tensor_parallel: int | None = None
    given: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def read_beside(
    *,
    ncu: PathLike | Sequence[PathLike] = (),
    device_spec: PathLike | Sequence[PathLike] = (),
    peaks: Mapping[str, float] | None = None,
    capture_trace: PathLike | Sequence[PathLike] = (),
    model: PathLike | None = None,
    tensor_parallel: int | None = None,
) -> Beside:
    """All of it, read; a mistake in any is told at once. Raises UsageError, or what the files' readers raise."""
    from tracekit.device_spec import read_device_specs
    from tracekit.devices import check_given
    from tracekit.model_config import read_model_config

    tables, specs, captures = paths_of(ncu), paths_of(device_spec), paths_of(capture_trace)
    figures = dict(peaks or {})
    check_given(figures)
    if tensor_parallel is not None and tensor_parallel < 1:
        raise UsageError(f"tensor_parallel is {tensor_parallel}; it counts the devices that share a layer, from 1 on")
    given = [
        *(word for path in tables for word in ("--ncu", str(path))),
        *(word for path in specs for word in ("--device-spec", str(path))),
        *(word for name, value in figures.items() for word in ("--peak", f"{name}={value:g}")),
        *(word for path in captures for word in ("--capture-trace", str(path))),
        *(() if model is None else ("--model", str(paths_of(model)[0]))),
        *(() if tensor_parallel is None else ("--tensor-parallel", str(tensor_parallel))),
    ]
    return Beside(
        counters=counters_in(tables),
        specs=tuple(spec for path in specs for spec in read_device_specs(path)),
        peaks=figures,
        captures=tuple(captures),
        model=None if model is None else read_model_config(paths_of(model)[0]),
        tensor_parallel=tensor_parallel,
        given=tuple(given),
        files=(*tables, *specs, *captures, *(() if model is None else paths_of(model))),
    )
