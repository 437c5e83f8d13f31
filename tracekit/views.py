"""What is in a trace? Its views by name, as rows that are fetched when asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracekit.rows import Rows
from tracekit.scope import Scope

if TYPE_CHECKING:
    import pyarrow as pa

DEVICE_KINDS = ("kernel", "memcpy", "memset", "graph", "sync", "gpu_annotation")
# Rows of the host are of no device: where devices are chosen, all of them are still there.
_HOST = "(SELECT devices[1] FROM scope)"
_DEVICE = f"CASE WHEN kind IN {DEVICE_KINDS} THEN device ELSE {_HOST} END"
_CHOSEN = f"in_scope(rank, {_DEVICE}, step) AND in_window(ts, dur)"
_CHOSEN_STEPS = f"in_scope(rank, {_HOST}, step) AND in_window(ts, dur)"
_CHOSEN_RANKS = "((SELECT ranks FROM scope) IS NULL OR list_contains((SELECT ranks FROM scope), rank))"
_CHOSEN_DEVICES = (
    f"{_CHOSEN_RANKS} AND "
    "((SELECT devices FROM scope) IS NULL OR coalesce(list_contains((SELECT devices FROM scope), device), false))"
)


class Views(ABC):
    """The views that every tool may rely on, of the part of the trace that is looked at. In `sql` the same names are
    all of the trace.
    """

    scope: Scope

    @abstractmethod
    def sql(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Run SQL and return its rows."""

    def view(self, name: str, chosen: str, order: str) -> Rows:
        """Rows of a view. chosen: the condition that holds for rows of what is looked at."""
        return Rows(self.sql, name, f"SELECT * FROM {name}{f' WHERE {chosen}' if self.scope else ''}", order=order)

    @property
    def events(self) -> Rows:
        """All events, host and device."""
        return self.view("events", _CHOSEN, "id")

    @property
    def device_activity(self) -> Rows:
        """Work on devices: kernels, copies, memsets, and graph replays recorded as one block."""
        return self.view("device_activity", _CHOSEN, "id")

    @property
    def kernels(self) -> Rows:
        """Kernels."""
        return self.view("kernels", _CHOSEN, "id")

    @property
    def memcpys(self) -> Rows:
        """Copies."""
        return self.view("memcpys", _CHOSEN, "id")

    @property
    def launches(self) -> Rows:
        """Runtime and driver API calls, whether or not they started work."""
        return self.view("launches", _CHOSEN, "id")

    @property
    def ops(self) -> Rows:
        """Framework operators on the host."""
        return self.view("ops", _CHOSEN, "id")

    @property
    def annotations(self) -> Rows:
        """User ranges on the host."""
        return self.view("annotations", _CHOSEN, "id")

    @property
    def python_calls(self) -> Rows:
        """Python functions on the host, where stacks were recorded."""
        return self.view("python_calls", _CHOSEN, "id")

    @property
    def steps(self) -> Rows:
        """Serving steps: rank, number, phase, batch. How long they take says `step_times()`."""
        return self.view("steps", _CHOSEN_STEPS, "rank, step")

    @property
    def devices(self) -> Rows:
        """Devices that the process saw, and any other that did work."""
        return self.view("devices", _CHOSEN_DEVICES, "rank, device")

    @property
    def ranks(self) -> Rows:
        """Ranks read."""
        return self.view("ranks", _CHOSEN_RANKS, "rank")
