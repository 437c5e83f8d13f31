"""The command that turns traces into files: convert."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracekit.cli import open_output, refuse_raw_name
from tracekit.cli_filters import scope_options
from tracekit.cli_options import FILE, FORCE, PARTIAL, RULES, STEP_RANGE, TRACE, opened_trace, part_of, progress_bar
from tracekit.errors import UsageError
from tracekit.scope import Scope
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.trace import Trace


@click.command()
@click.argument("trace", nargs=-1, required=True, type=TRACE)
@click.option(
    "--to",
    "form",
    type=click.Choice(["parquet", "perfetto"]),
    default="parquet",
    show_default=True,
    help="perfetto: a Chrome trace that Perfetto and chrome://tracing show, with what tracekit found on tracks of its "
    "own.",
)
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="File to write.")
@scope_options
@RULES
@PARTIAL
@STEP_RANGE
@FORCE
def convert(
    *,
    trace: tuple[Path, ...],
    form: Literal["parquet", "perfetto"],
    output: Path,
    scope: Scope,
    rules: tuple[Path, ...],
    allow_partial: bool,
    step_range: str | None,
    force: bool,
) -> None:
    """Read profiler files into one Parquet file, or into a picture.

    \b
    Examples:
      tracekit convert rank0.pt.trace.json.gz rank1.pt.trace.json.gz -o trace.parquet
      tracekit convert torch.json.gz nsys.sqlite -o both.parquet        # of one run
      tracekit convert trace.parquet --to perfetto -o look.json.gz
      tracekit convert trace.parquet --to perfetto --steps 5 -o step5.json.gz

    Reads what torch.profiler writes (.json, .json.gz, .json.zst) and what Nsight Systems does (.sqlite, a parquetdir
    folder; .nsys-rep where nsys is installed). A file that was cut short ends with exit code 4, after its whole events
    were written, unless --allow-partial is given.

    --to perfetto reads a Parquet file made by tracekit, too. --phase, --steps, --rank, --device, --since, --until and
    --rules are for it alone: a Parquet file always has all.
    """
    if form == "perfetto":
        from tracekit.perfetto_file import check_suffix

        check_suffix(output)
        open_output(output, force, inputs=(*trace, *rules))
        with opened_trace(trace, rules, allow_partial, step_range) as whole, part_of(whole, scope) as part:
            _to_perfetto(part, output, force)
        return
    if scope or rules:
        given = "--rules" if rules else scope.arguments()[0]
        raise UsageError(f"{given} is for --to perfetto: a Parquet file has all of a trace; give {given} to analyze")
    refuse_raw_name(output, ", or give --to perfetto")
    _to_parquet(trace, output, allow_partial, step_range, force)


def _to_parquet(
    paths: tuple[Path, ...], output: Path, allow_partial: bool, step_range: str | None, force: bool
) -> None:
    from tracekit.convert import convert as run

    for path in paths:
        _refuse_own(path)
    with progress_bar() as progress:
        footer = run(paths, output, allow_partial=allow_partial, force=force, progress=progress, step_range=step_range)
    skipped = sum(footer.ledger.skipped.values())
    click.echo(
        f"{counted(footer.ledger.read, 'event')} read, {footer.ledger.stored:,} stored, {skipped:,} skipped, "
        f"{counted(len(footer.ranks), 'rank')}",
        err=True,
    )
    click.echo(f"Wrote {output}", err=True)


def _refuse_own(path: Path) -> None:
    from tracekit import store
    from tracekit.inputs import is_parquet

    if is_parquet(path):
        store.read_footer(path)
        raise UsageError(f"{path} is already a tracekit trace; give it to analyze or sql as it is")


def _to_perfetto(trace: Trace, output: Path, force: bool) -> None:
    from tracekit.perfetto import export

    with progress_bar("Writing", "events") as shown:
        written = export(trace, output, force=force, progress=shown and partial(shown, output))
    for name, reason in written.missing.items():
        click.echo(f"No track of {name.replace('_', ' ')}: {reason}", err=True)
    click.echo(
        f"Wrote {output}: {counted(sum(written.by_kind.values()), 'event')}{_listed(written.by_kind)}, "
        f"{counted(written.flows, 'flow')}; on tracks of tracekit's own{_listed(written.layers) or ' nothing'}",
        err=True,
    )


def _listed(counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count)
    return f" ({shown})" if shown else ""
