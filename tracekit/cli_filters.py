"""Options of `analyze` that choose the part of a trace to look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import click

from tracekit.ranges import PHASES
from tracekit.scope import Scope, parse_duration, parse_steps, scope_of

_OPTIONS = (
    click.option(
        "--phase",
        multiple=True,
        metavar="PHASE",
        help=f"Only steps of this phase: {', '.join(PHASES)} (also what is outside steps).",
    ),
    click.option(
        "--steps",
        metavar="A:B",
        help="Only steps A to B of each rank, B not included; either may be left out. One number is one step, negative "
        "ones count from the end.",
    ),
    click.option(
        "--rank", type=int, multiple=True, metavar="N", help="Only this rank; may be repeated, as --phase and --device."
    ),
    click.option("--device", type=int, multiple=True, metavar="N", help="Only this device."),
    click.option(
        "--since", metavar="TIME", help="Only from this time on, e.g. 1.2s, 350ms, 20us; the trace starts at 0s."
    ),
    click.option("--until", metavar="TIME", help="Only up to this time."),
)


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets them as one parameter `scope`."""

    @wraps(command)
    def with_scope(
        *,
        phase: tuple[str, ...],
        steps: str | None,
        rank: tuple[int, ...],
        device: tuple[int, ...],
        since: str | None,
        until: str | None,
        **others: object,
    ) -> None:
        scope: Scope = scope_of(
            phase=phase or None,
            steps=None if steps is None else parse_steps(steps),
            rank=rank or None,
            device=device or None,
            since_ns=None if since is None else parse_duration(since),
            until_ns=None if until is None else parse_duration(until),
        )
        command(scope=scope, **others)

    decorated: Callable[..., None] = with_scope
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
