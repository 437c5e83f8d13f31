"""The command that turns traces into files: convert."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import click

from tracekit.cli import open_output
from tracekit.cli_filters import scope_options
from tracekit.cli_options import FILE, FORCE, PARTIAL, RULES, STEP_RANGE, TRACE, progress_bar, utf8
from tracekit.errors import UsageError
from tracekit.scope import Scope
from tracekit.wording import counted


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
    wanted = step_range and utf8(step_range, "the step range")
    if form == "perfetto":
        _to_perfetto(
            trace,
            output,
            scope,
            rules=rules,
            allow_partial=allow_partial,
            step_range=wanted,
            force=force,
        )
        return
    if scope or rules:
        given = "--rules" if rules else scope.arguments()[0]
        raise UsageError(f"{given} is for --to perfetto: a Parquet file has all of a trace; give {given} to analyze")
    _to_parquet(trace, output, allow_partial, wanted, force)


def _to_parquet(
    trace: tuple[Path, ...], output: Path, allow_partial: bool, step_range: str | None, force: bool
) -> None:
    from tracekit.convert import convert as run

    for path in trace:
        _refuse_own(path)
    with progress_bar() as progress:
        footer = run(trace, output, allow_partial=allow_partial, force=force, progress=progress, step_range=step_range)
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


def _to_perfetto(
    paths: tuple[Path, ...],
    output: Path,
    scope: Scope,
    *,
    rules: tuple[Path, ...],
    allow_partial: bool,
    step_range: str | None,
    force: bool,
) -> None:
    from tracekit import trace as traces
    from tracekit.perfetto import export
    from tracekit.perfetto_file import check_suffix

    check_suffix(output)
    open_output(output, force, inputs=(*paths, *rules))
    with progress_bar() as progress:
        whole = traces.open(
            paths if len(paths) > 1 else paths[0],
            rules=rules,
            allow_partial=allow_partial,
            progress=progress,
            step_range=step_range,
        )
    with whole, whole.within(scope) if scope else nullcontext(whole) as trace:
        written = export(trace, output, force=force)
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
