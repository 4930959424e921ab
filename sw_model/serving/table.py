"""Rows of simulations and of capacity searches as text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from util import text

Row = Mapping[str, Any]
HEAD = (
    "system, policy", "devices", "streams", "frame p50 ms", "p95 ms", "p99 ms", "TTFT p50 ms", "p99 ms",
    "TPOT p50 ms", "p99 ms", "refused %", "busy %", "batch", "holds",
)  # fmt: skip


def name_of(row: Row) -> str:
    """System and policy of a row."""
    return f"{row['system']}, {row['policy']}"


def devices_of(row: Row) -> int:
    """Devices of a row."""
    return row.get("serve.devices", 1)


def latencies(rows: Sequence[Row]) -> str:
    """Latencies over the number of streams, a dash where nothing was served; then the reasons of refused streams."""
    reasons = [
        f"{name_of(row)}: {row['refused_streams']} of {row['streams']} streams are refused: {row['refusal']}"
        for row in rows
        if row["refused_streams"]
    ]
    table = text.table(
        HEAD,
        [
            (
                name_of(row),
                str(devices_of(row)),
                f"{row['streams']}" + (f" (-{row['refused_streams']})" if row["refused_streams"] else ""),
                *(number(row[f"frame_p{share}_ms"]) for share in (50, 95, 99)),
                *(number(row[f"{name}_p{share}_ms"]) for name in ("first_token", "per_token") for share in (50, 99)),
                f"{100 * refused_share(row):.1f}",
                f"{100 * row['busy_mean']:.0f}",
                f"{row['batch.frame']:.1f}",
                "yes" if row["holds"] else "no",
            )
            for row in rows
        ],
    )
    return "\n".join([table, *reasons])


def capacities(rows: Sequence[Row]) -> str:
    """Capacities over the limits of the frame latency, with what prevents one more stream."""
    return text.table(
        ("system, policy", "devices", "limit ms", "streams", "frame p99 ms", "TTFT p99 ms", "TPOT p99 ms", "busy %",
         "limited by"),
        [
            (
                name_of(row),
                str(devices_of(row)),
                number(row["serve.limit_ms"]),
                str(row["capacity_streams"]),
                *(number(row[f"{name}_p99_ms"]) for name in ("frame", "first_token", "per_token")),
                "-" if row["busy_max"] is None else f"{100 * row['busy_max']:.0f}",
                str(row["limited_by"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def refused_share(row: Row) -> float:
    """Share of the offered frames that were refused, those of refused streams included."""
    return row["refused_frames"] / max(1, row["frames"])


def number(value: float | None) -> str:
    """A number with four digits, or a dash for None."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
