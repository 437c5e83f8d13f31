"""What a trace lacks, in words: reasons that several analyses give for saying nothing."""

from __future__ import annotations

from tracekit.footer import Footer

CANNOT_TELL = "idle time cannot be told"  # how reasons begin where holes are not taken for idle time


def cut(footer: Footer) -> str:
    """Which files end early, and where; "" if none does."""
    return "; ".join(
        f"{source.path} at byte {source.truncated_at:,}" for source in footer.sources if source.truncated_at is not None
    )


def no_device(footer: Footer) -> str:
    """Why there is no device activity, and what would record it."""
    if footer.ledger.stored == 0:
        return "nothing was recorded: this trace has no events; check that the profiler was running"
    if where := cut(footer):
        return f"the file was cut ({where}) before any device activity, which comes last; get the whole file"
    return (
        "no device activity in this trace: record with CUDA activities (ProfilerActivity.CUDA, or `tracekit collect` "
        "on a machine with a GPU) and check that CUPTI may profile (driver permission, no second profiler)"
    )
