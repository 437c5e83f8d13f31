"""What do the texts in Nsight Compute's tables mean: numbers, units, labels?

Sources: the section files that Nsight Compute 2022.3 installs, its command-line manual, and details pages of 2025.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from tracekit.errors import MalformedTraceError

Mark = Literal[".", ","]

# A number as any locale prints it, and what `--print-metric-instances` puts behind it.
_NUMBER = re.compile(r"([+-]?\d[\d.,'’ \u00a0\u202f]*(?:[eE][+-]?\d+)?)\s*(?:[({\[;].*)?")
_SPACES = str.maketrans("", "", "'’ \u00a0\u202f")
_NOTHING = re.compile(r"|n/a|no data|[+-]?(?:nan|inf)\b.*", re.IGNORECASE)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def is_nothing(text: str) -> bool:
    """Tell whether a cell says that there is no value: ncu prints `n/a` for metrics that the device does not have."""
    return _NOTHING.fullmatch(text.strip()) is not None


def decimal_mark(values: Iterable[tuple[int, str]], file: str) -> Mark:
    """The decimal mark of a table, "." or ",": ncu prints numbers in the locale of its process, `1,234.5` or `1.234,5`.

    A single `1,234` does not tell, so all of the table is asked; if nothing in it tells, it is the point.
    values: line and text. Raises MalformedTraceError where two values contradict each other.
    """
    told: dict[Mark, tuple[int, str]] = {}
    for line, text in values:
        if (mark := _mark_of(text)) is not None and mark not in told:
            told[mark] = (line, text)
    if len(told) > 1:
        (line, point), (other, comma) = told["."], told[","]
        raise MalformedTraceError(
            f"{file}: line {line} has {point!r} with a decimal point, line {other} has {comma!r} with a decimal comma; "
            "export it again, in one locale (LC_ALL=C)"
        )
    return next(iter(told), ".")


def number(text: str, mark: Mark) -> Decimal | None:
    """The value of a cell, None if it is text. Of a metric with instances it is the aggregate, which comes first."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    digits = match[1].translate(_SPACES)
    group = "," if mark == "." else "."
    whole, point, fraction = digits.partition(mark)
    if group in fraction or mark in fraction or (group in whole and not _grouped(whole, group)):
        return None
    return Decimal(f"{whole.replace(group, '')}{'.' if point else ''}{fraction}")


def _mark_of(text: str) -> Mark | None:
    """The decimal mark that a number shows; None if it could be either."""
    match = _NUMBER.fullmatch(text.strip())
    digits = match[1].translate(_SPACES).lstrip("+-").lower().partition("e")[0] if match else ""
    points, commas = digits.count("."), digits.count(",")
    if points and commas:
        last: Mark = "." if digits.rfind(".") > digits.rfind(",") else ","
        return last if digits.count(last) == 1 else None
    mark: Mark = "." if points else ","
    if points + commas > 1:
        other: Mark = "," if points else "."
        return other if _grouped(digits, mark) else None
    if points + commas == 1:
        before, _, after = digits.partition(mark)
        could_group = len(after) == 3 and 1 <= len(before) <= 3 and before != "0"
        return None if could_group else mark
    return None


def _grouped(digits: str, group: str) -> bool:
    first, *others = digits.lstrip("+-").split(group)
    return 1 <= len(first) <= 3 and all(len(one) == 3 for one in others)


# ---- units -----------------------------------------------------------------------------------------------------------

_SCALES = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}  # Kbyte is 1000 byte: 32,768 byte print as 32.77 Kbyte
_BYTES = re.compile(r"([KMGTP]?)(i?)(?:byte|B)", re.IGNORECASE)
_SECONDS = re.compile(r"([nuµm]?)(?:second|sec|s)")
_HERTZ = re.compile(r"([KMG]?)hz", re.IGNORECASE)
_COUNTS = re.compile(r"([KMGT])(inst|cycle|sector|request|warp|thread|block)")
_NS = {"n": 0, "u": 3, "µ": 3, "m": 6, "": 9}


@lru_cache(maxsize=1024)
def base_unit(unit: str) -> tuple[str, Decimal]:
    """The unit that values are stored in, and the factor to it: byte, ns, Hz, %, and rates of them per second.

    Others (inst/cycle, register/thread, warp) stay as they are.
    """
    counted, slash, per = unit.strip().partition("/")
    name, factor = _scaled(counted)
    if not slash:
        return name, factor
    if match := _SECONDS.fullmatch(per):
        rate = factor.scaleb(9 - _NS[match[1]])
        if name == "ns":  # time per time
            return "", rate.scaleb(-9)
        return ("Hz" if name == "cycle" else f"{name}/s"), rate
    below, divisor = _scaled(per)
    return f"{name}/{below}", factor / divisor


def _scaled(word: str) -> tuple[str, Decimal]:
    if match := _BYTES.fullmatch(word):
        scale = _SCALES[match[1].lower()]
        return "byte", Decimal(1024 ** (scale // 3)) if match[2] else Decimal(10**scale)
    if match := _SECONDS.fullmatch(word):
        return "ns", Decimal(10 ** _NS[match[1]])
    if match := _HERTZ.fullmatch(word):
        return "Hz", Decimal(10 ** _SCALES[match[1].lower()])
    if match := _COUNTS.fullmatch(word):
        return match[2], Decimal(10 ** _SCALES[match[1].lower()])
    return word, Decimal(1)


# ---- labels ----------------------------------------------------------------------------------------------------------

_OWN_METRICS = "Command line profiler metrics"  # the section of `--metrics`: labels there are ids
_ID = re.compile(r"\b[a-z]\w*__[\w.]+")
_METRICS = {
    "GPU Speed Of Light Throughput": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    },
    "Launch Statistics": {
        "Grid Size": "launch__grid_size",
        "Block Size": "launch__block_size",
        "Cluster Size": "launch__cluster_size",
        "Threads": "launch__thread_count",
        "Waves Per SM": "launch__waves_per_multiprocessor",
        "Registers Per Thread": "launch__registers_per_thread",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Function Cache Configuration": "launch__func_cache_config",
    },
    "Occupancy": {
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Max Active Clusters": "launch__cluster_max_active",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
    },
    "Compute Workload Analysis": {
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    },
    "Scheduler Statistics": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
    },
    "Warp State Statistics": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    },
    "Instruction Statistics": {
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    },
}


@lru_cache(maxsize=4096)
def metric_id(section: str, label: str) -> str:
    """The id of a metric of the details page, which prints labels; `section/label` for one that is not known here.

    A label means different metrics in different sections. `--print-metric-name name` and `label-name` print the id.
    """
    if section == _OWN_METRICS:
        return label
    if match := _ID.search(label):
        return match[0]
    return _METRICS.get(section, {}).get(label, f"{section}/{label}")
