"""How the figures of a health check come about: what the macro health counted, or what the reader wrote down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analysis import Result, Row
from tracekit.footer import Footer

_LEDGER = "SELECT sum(count) FROM footer_ledger WHERE entry ="
_BY_TIME = "unclassified_time"  # judged by the time of the rows, not by their number


def counted(check: str, measured: Mapping[str, Row], footer: Footer) -> Iterator[str]:
    """Of all checks but that of idle time. measured: rows of the macro health, by check."""
    ledger = footer.ledger
    if check == "events":
        skipped = sum(ledger.skipped.values())
        yield arithmetic.queried("read", f"{_LEDGER} 'read'", ledger.read, "events")
        if ledger.read == ledger.stored + skipped:
            yield arithmetic.total("stored and skipped", (ledger.stored, skipped), "events")
    elif check in ("skipped", "repaired"):
        count = sum((ledger.skipped if check == "skipped" else ledger.repaired).values())
        yield arithmetic.queried(check, f"{_LEDGER} '{check}'", count, "events")
    elif check == "ranks":
        yield arithmetic.queried("ranks present", "SELECT count(*) FROM ranks", len(footer.ranks), "ranks")
    elif check in measured:
        yield from _measured(check, measured[check])


def _measured(check: str, row: Row) -> Iterator[str]:
    part, whole, unit = ("ns", "total_ns", "ns") if check == _BY_TIME else ("count", "total", "rows")
    chosen = f"FROM health() AS h WHERE h.check = '{check}'"
    yield arithmetic.queried("found", f"SELECT {part} {chosen}", row[part] or 0, unit)
    if row[whole]:
        yield arithmetic.queried("of all", f"SELECT {whole} {chosen}", row[whole], unit)
        yield arithmetic.share("share", row[part] or 0, row[whole], unit)


def unattributed(idle: Result) -> Iterator[str]:
    """Of the device on which the largest part of the span is idle without a cause."""
    worst = max(idle.summary, key=lambda row: row["by_cause"].get("unattributed", 0) / max(1, row["span_ns"]))
    ns, here = worst["by_cause"].get("unattributed", 0), arithmetic.on(worst["rank"], worst["device"])
    query = f"SELECT sum(dur) FROM idle_gaps() WHERE {here} AND cause = 'unattributed'"
    yield arithmetic.queried("idle without a cause", query, ns)
    yield arithmetic.queried("span", f"SELECT span_ns FROM device_time() WHERE {here}", worst["span_ns"])
    yield arithmetic.share("share", ns, worst["span_ns"])
