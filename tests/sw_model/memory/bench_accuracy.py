"""Errors of the memory models on their references: `python -m tests.sw_model.memory.bench_accuracy`.

`docs.measure memory-models` writes the tables as a page.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sw_model.memory.dram import pattern, replay
from sw_model.memory.pcie import PcieLink, transfer
from sw_model.memory.spec import load_memory, memory_names
from sw_model.memory.ssd import addresses, load_ssd, read
from tests.sw_model.memory import test_dram, test_live, test_live_drive, test_pcie, test_ssd
from util.text import table

HBM2E = json.loads((Path(__file__).parent / "data" / "hbm2e.json").read_text())["tests"]


@dataclass(frozen=True)
class Error:
    """Relative errors of one case: bandwidth, mean latency, activates (None: the reference does not have them).

    `cause` explains the difference.
    """

    model: str
    pattern: str
    case: str
    bandwidth: float
    latency: float | None = None
    activates: float | None = None
    cause: str = ""


def dram_pattern(p: dict) -> str:
    """Name of a group of reference tests."""
    if p.get("rate"):
        return "random reads at a fixed rate"
    if p["kind"] == "two_seq":
        return "two sequential streams"
    kind = "sequential" if p["kind"] == "seq" else "random"
    writes = p.get("write_frac", 0.0)
    if writes:
        return f"{kind} writes" if writes == 1 else f"{kind}, 30 % writes"
    if kind == "sequential":
        return "sequential reads"
    return "random reads up to 256 B" if p["size"] <= 256 else "random reads of 1 to 128 KiB"


def dram_errors() -> Iterator[Error]:
    """DRAM compared with Ramulator 2.1. Bandwidth from the clocks of the run, which the reference gives exactly."""
    for test in test_dram.DATA:
        memory, trace = test_dram.setting(test)
        run = replay(memory, trace, test["mapping"])
        reads = run.latency_ns[trace.write == 0]
        latency = reads.mean() / test["read_latency_ns"] - 1 if test["read_latency_ns"] else None
        clocks, activates = run.clocks - test["clocks"], run.commands["ACT"] - test["activates"]
        if test["pattern"].get("rate"):
            cause = "queue near saturation: its length depends on single decisions of the scheduler"
        elif abs(activates) / test["activates"] > abs(clocks) / test["clocks"]:
            cause = f"{abs(activates)} of {test['activates']} activates: rows closed before a refresh and opened again"
        elif test["refresh"] != "NoRefresh" and abs(clocks) > 0.7 * memory.timing["rfc"]:
            cause = f"{clocks:+d} clocks: the run ends {'after' if clocks > 0 else 'before'} one more refresh"
        else:
            cause = f"{clocks:+d} clocks of {test['clocks']}: order of commands that are ready in one clock"
        name = f"{test['memory']}, {test['mapping']}, {test['refresh']}, {test['pattern']['name']}"
        model = f"{test_dram.PRESET[test['memory'].split('_')[0]]}, refresh {memory.refresh}"
        bandwidth = test["clocks"] / run.clocks - 1
        yield Error(
            model, dram_pattern(test["pattern"]), name, bandwidth, latency, activates / test["activates"], cause
        )


def hbm2e_errors() -> Iterator[Error]:
    """HBM2e compared with the results of Ramulator 2.1 that are known, which are rounded."""
    memory = load_memory("hbm2e-3024-5120b")
    for test in HBM2E:
        queues = replace(memory, read_queue=test["queue"], write_queue=test["queue"])
        share = replay(queues, pattern(queues, test["kind"], test["size"], test["n"], outstanding=test["qd"])).share
        kind = "sequential reads" if test["kind"] == "seq" else "random reads up to 256 B"
        cause = (
            f"{100 * share:.1f} % of the peak; the reference is rounded to {test['digit']} % and does not say the "
            f"number of requests (here {test['n']}), which decides how many refreshes are in the run"
        )
        yield Error(memory.name, kind, test["name"], 100 * share / test["bandwidth_pct"] - 1, cause=cause)


def live_errors() -> Iterator[Error]:
    """Simulated ports at 800 MHz compared with the replay of the same requests."""
    for name in memory_names():
        memory = load_memory(name)
        for traffic in test_live.TRAFFIC:
            latency, gbps, want = test_live.live_and_replay(memory, traffic)
            cause = "answers are rounded up to cycles of the port, writes that complete early are seen late"
            errors = gbps / want.bandwidth_gbps - 1, np.mean(latency) / np.mean(want.latency_ns) - 1
            yield Error(f"port on {name}", traffic, f"{name}, {traffic}", *errors, cause=cause)


def pcie_errors() -> Iterator[Error]:
    """Closed forms compared with pcie-bench, and the transfer with the closed form."""
    for row in test_pcie.DATA["tables"]:
        one, split = test_pcie.link(row), test_pcie.link(row, rcb64=True)
        forms: dict[str, Callable[[int], float]] = {
            "read": one.read_gbps, "read_rcb64": split.read_gbps, "write": one.write_gbps,
        }  # fmt: skip
        for what, form in forms.items():
            for size, gbps in row[what].items():
                case = f"{row['link']}, payload {row['mps']}, request {row['mrrs']}, {what} of {size} B"
                cause = "the reference is rounded to 1 MB/s"
                yield Error("link, closed form", what.replace("_rcb64", ", 64 B pieces"), case,
                            form(int(size)) / gbps - 1, cause=cause)  # fmt: skip
    for row in test_pcie.DATA["tag_limited"]:
        one = PcieLink(*map(int, row["link"].removeprefix("gen").split("x")), max_payload=row["mps"],
                       max_read_request=row["mrrs"], tags=row["tags"], round_trip_ns=row["rtt_ns"])  # fmt: skip
        case = f"{row['link']}, payload {row['mps']}, request {row['mrrs']}, {row['tags']} tags, {row['rtt_ns']} ns"
        error = min(one.read_gbps(4096), one.tag_limit_gbps()) / row["GBps"] - 1
        yield Error("link, closed form", "tag limit", case, error, cause="the reference is rounded to 1 MB/s")
    for generation, lanes in ((3, 4), (4, 4), (4, 16)):
        for unit in (512, 4096, 65536):
            one = PcieLink(generation, lanes, descriptor_ns=0.0)
            error = transfer(one, 1 << 22, unit).steady_gbps / min(one.fetch_gbps(unit), one.tag_limit_gbps(unit)) - 1
            case = f"gen{generation}x{lanes}, descriptors of {unit} B"
            cause = "descriptors are fetched in front of the first request of a unit"
            yield Error("link, transfer", "steady rate and closed form", case, error, cause=cause)


def ssd_errors() -> Iterator[Error]:
    """Drives compared with MQSim."""
    for test in test_ssd.DATA:
        ssd, result = load_ssd(test_ssd.DRIVES[test["config"]]), test["result"]
        streaming = test["pattern"] == "STREAMING"
        run = read(ssd, test["size_KiB"] * 1024, test["n"], test["qd"], random=not streaming)
        by_link = result["bw_MBps"] >= test_ssd.LINK_MBPS
        kind = f"{'sequential' if streaming else 'random'}, {'link' if by_link else 'flash'} is the limit"
        case = f"{'sequential' if streaming else 'random'} {test['size_KiB']} KiB, {test['qd']} in flight"
        cause = "the reference is rounded to 0.1 MB/s and 10 ns"
        errors = run.bandwidth_gbps * 1e3 / result["bw_MBps"] - 1, run.latency_us.mean() / result["lat_us"]["avg"] - 1
        yield Error(test_ssd.DRIVES[test["config"]], kind, case, *errors, cause=cause)


def live_drive_errors() -> Iterator[Error]:
    """Drives behind a simulated port compared with the drive model, for reads of whole pages, without the link."""
    count = 1000
    for name, random, pages, outstanding in itertools.product(
        test_ssd.DRIVES.values(), (False, True), (1, 8), (1, 16, 64, 256)
    ):
        ssd = replace(load_ssd(name), link_gbps=1e6)
        size = pages * ssd.page_bytes
        requests = addresses(ssd, size, count, random=random).tolist()
        latency, end = test_live_drive.drive_loop(ssd, requests, size, outstanding)
        want = read(ssd, size, count, outstanding, random=random)
        errors = (
            count * size / end / want.bandwidth_gbps - 1,
            latency.mean() / want.latency_us.mean() / 1e3 - 1,
        )
        kind = f"{'random' if random else 'sequential'} reads, {outstanding} in flight"
        cause = "the same steps of the flash"
        yield Error(f"port on {name}", kind, f"{kind}, {size // 1024} KiB", *errors, cause=cause)


MODELS = {
    "DRAM, replay": dram_errors,
    "HBM2e, replay": hbm2e_errors,
    "DRAM, simulated ports": live_errors,
    "PCIe": pcie_errors,
    "Drives": ssd_errors,
    "Drives, simulated ports": live_drive_errors,
}
GROUP_HEAD = ("model", "pattern", "cases", "bandwidth: mean", "largest", "mean latency: mean", "largest")
LARGEST_HEAD = ("model", "case", "bandwidth", "mean latency", "activates", "cause")


def groups(errors: Iterable[Error]) -> list[tuple[str, ...]]:
    """Mean absolute and largest errors by model and pattern."""
    members: dict[tuple[str, str], list[Error]] = {}
    for error in errors:
        members.setdefault((error.model, error.pattern), []).append(error)
    rows: list[tuple[str, ...]] = []
    for (model, kind), each in members.items():
        cells: list[str] = []
        for what in ("bandwidth", "latency"):
            values = np.array([value for e in each if (value := getattr(e, what)) is not None])
            worst = _percent(values[np.argmax(np.abs(values))]) if len(values) else ""
            cells += [f"{np.abs(values).mean():.2%}", worst] if len(values) else ["", ""]
        rows.append((model, kind, str(len(each)), *cells))
    return rows


def largest(errors: Iterable[Error], count: int = 5) -> list[tuple[str, ...]]:
    """The largest errors of bandwidth or latency, then those of activates, with their causes."""
    each = list(errors)
    by_rate = sorted(each, key=lambda e: -max(abs(e.bandwidth), abs(e.latency or 0)))[:count]
    by_row = [e for e in sorted(each, key=lambda e: -abs(e.activates or 0))[:2] if e.activates and e not in by_rate]
    return [
        (e.model, e.case, _percent(e.bandwidth), _percent(e.latency), _percent(e.activates), e.cause)
        for e in (*by_rate, *by_row)
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{round(value, 12):+.2%}"


def main() -> None:
    for title, measure in MODELS.items():
        errors = list(measure())
        print(f"\n{title}\n{table(GROUP_HEAD, groups(errors))}\n\n{table(LARGEST_HEAD, largest(errors))}")


if __name__ == "__main__":
    main()
