"""What the tests of the command line share: a small trace with one long wait for the host, and how to run a command."""

from __future__ import annotations

from click.testing import CliRunner, Result

from tests.event_rows import kernel, launch, op
from tracekit.cli import main

US = 1_000
ROWS = [
    launch(0, 5 * US),
    op(6 * US, 900 * US),
    launch(392 * US, 5 * US, parent_id=2),
    kernel(10 * US, 90 * US, launch_id=1, name='nvjet<"a">'),
    kernel(400 * US, 610 * US, launch_id=3, name="nvjet"),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
