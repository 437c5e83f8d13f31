"""What the user gives beside a trace: measurements, figures of the device, traces with shapes, the model served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.counters import Counters
from tracekit.device_spec import DeviceSpec, read_device_specs
from tracekit.errors import UsageError
from tracekit.inputs import counters_in
from tracekit.model_config import ModelConfig, read_model_config
from tracekit.peaks_given import peaks_given


@dataclass(frozen=True, slots=True)
class Beside:
    """counters: of Nsight Compute. specs: devices of the user's own tables, in order. peaks: figures that go before all
    tables, by name. captures: traces of the same server with shapes. model: what is served, on tensor_parallel devices.
    given: the options that name all this, as on the command line.
    """

    counters: Counters | None = None
    specs: tuple[DeviceSpec, ...] = ()
    peaks: Mapping[str, float] = field(default_factory=dict)
    captures: tuple[Path, ...] = ()
    model: ModelConfig | None = None
    tensor_parallel: int | None = None
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """The same as files and figures that are not read yet; each as the parameter of `tracekit.open` of that name. A
    peak may be a text such as "989T", too.
    """

    ncu: tuple[Path, ...] = ()
    device_spec: tuple[Path, ...] = ()
    peaks: Mapping[str, float | str] = field(default_factory=dict)
    capture_trace: tuple[Path, ...] = ()
    model: Path | None = None
    tensor_parallel: int | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are to be read."""
        return (*self.ncu, *self.device_spec, *self.capture_trace, *(() if self.model is None else (self.model,)))

    @property
    def options(self) -> tuple[str, ...]:
        """As on the command line."""
        named: list[tuple[str, object]] = [
            *(("--ncu", path) for path in self.ncu),
            *(("--device-spec", path) for path in self.device_spec),
            *(("--peak", f"{name}={_shortest(value)}") for name, value in peaks_given(self.peaks).items()),
            *(("--capture-trace", path) for path in self.capture_trace),
            *(() if self.model is None else (("--model", self.model),)),
            *(() if self.tensor_parallel is None else (("--tensor-parallel", self.tensor_parallel),)),
        ]
        return tuple(str(word) for option in named for word in option)

    def read(self) -> Beside:
        """A mistake in any of it is told at once. Raises UsageError, or what the files' readers raise."""
        peaks = peaks_given(self.peaks)
        for path in self.capture_trace:
            if not path.exists():
                raise UsageError(f"{path}: no such file")
        if self.tensor_parallel is not None and self.tensor_parallel < 1:
            raise UsageError(
                f"tensor parallelism of {self.tensor_parallel}: it counts devices that share a layer, from 1"
            )
        return Beside(
            counters=counters_in(self.ncu),
            specs=tuple(spec for path in self.device_spec for spec in read_device_specs(path)),
            peaks=peaks,
            captures=self.capture_trace,
            model=None if self.model is None else read_model_config(self.model),
            tensor_parallel=self.tensor_parallel,
            given=self.options,
        )


def _shortest(value: float) -> str:
    """The shortest text that is read as exactly this figure: `9.89e+14`."""
    return next((text for digits in range(1, 17) if float(text := f"{value:.{digits}g}") == value), repr(float(value)))
