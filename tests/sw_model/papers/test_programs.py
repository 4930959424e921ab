"""Times of V-Rex's programs: the record against the code, the workload against the formula, paths and rows."""

from dataclasses import astuple, replace
from itertools import pairwise

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.weight_formats import FORMATS
from hw.config import Config
from hw.core.load_unit import LengthLimit
from sw_model.cycles.columns import Command
from sw_model.cycles.critical_path import critical_path, memory_of, shares
from sw_model.cycles.frame import compile_carry, compile_step, compile_store, compile_vision, compile_window_step
from sw_model.cycles.store_commands import Act
from sw_model.cycles.workload_step import StepNumbers, workload_step
from sw_model.explain import program_waits
from sw_model.papers import program_runs as runs
from sw_model.papers import programs
from sw_model.papers.program_runs import NominalLink, step_numbers, timing
from sw_model.papers.programs import Point, program_cycles, program_rows, recorded
from sw_model.papers.reproduce import reproduce
from sw_model.request import Request
from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B

PAGE_BYTES = 32 * 2 * 128 * 2  # of the keys and values of one head
SMALL = {"hidden": 256, "ffn": 512, "vocab": 1024}


def test_record_has_the_cycles_of_the_code():
    """A run of seconds stands for all runs of the record; repeat them with `bench_programs` when this fails."""
    now, then = runs.check(), recorded()["check"]
    assert now["cycles"] == pytest.approx(then["cycles"], rel=0.01)
    assert now["repeated"] == pytest.approx(then["repeated"], rel=0.01)
    assert [entry["command"] for entry in now["critical path"]] == [entry["command"] for entry in then["critical path"]]
    for name in ("traffic", "repeated traffic"):
        assert now[name] == pytest.approx(then[name], rel=0.01)


def test_programs_of_four_bits_load_every_projection_once():
    """Encoded LOADs of all cores have the projections of three layers; all selected tokens are in device memory."""
    point, model = Point("vrex8-plus", "frame", 1000), replace(LLAMA3_8B, **SMALL)
    config, numbers = load_system(point.system).core.config, step_numbers(point, model)
    assert numbers == step_numbers(replace(point, system="vrex8"), model) and numbers.fetched == 0
    far = replace(point, past=40_000)
    assert step_numbers(far).fetched == 0 < step_numbers(replace(far, system="vrex8")).fetched
    step = workload_step(config, numbers)
    programs = compile_step(config, model, step, tokens=numbers.tokens, past=1000).programs
    loads = [command.fields for program in programs for command in program if command.name == "LOAD"]
    encoded = [fields for fields in loads if fields.get("limit") == LengthLimit.ENCODED]
    assert {fields["block"] for fields in encoded} == {FORMATS["int4"].number}
    words = sum(fields["rows"] * fields["beats"] for fields in encoded)
    assert words * config.dpe_inputs == 3 * (model.attn_params + model.ffn_params)


def test_one_layer_stands_for_the_repeated_ones():
    """Six layers, of which pages are fetched, against the composition from their first, second and last layer: within
    2 %. If the fetch of a layer is much longer than its products, as in `SMALL`, layers after the second take longer.
    """
    system, model = load_system("vrex8"), replace(LLAMA3_8B, **SMALL | {"hidden": 1024, "ffn": 4096})
    numbers = step_numbers(Point("vrex8", "frame", 5000))
    step = workload_step(system.core.config, numbers)
    options = {"tokens": numbers.tokens, "past": 5000}
    three, six = (
        compile_step(system.core.config, model, step, layers=layers, **options).run(timing(system)) for layers in (3, 6)
    )
    assert len(three.ends) == 3 and len(six.ends) == 6
    assert three.with_layers(6) == pytest.approx(six.cycles, rel=0.02)
    composed = three.traffic.plus(three.repeated_traffic, 3)
    device, whole = (astuple(replace(traffic, host_read=0)) for traffic in (composed, six.traffic))
    assert device == pytest.approx(whole, rel=0.01)
    # the ends of layers cut fetches: a repeated layer can have some pages more or fewer than another one
    assert composed.host_read == pytest.approx(six.traffic.host_read, abs=3 * 4 * PAGE_BYTES)
    fetched = 6 * 8 * numbers.fetched * PAGE_BYTES
    assert six.traffic.host_read == fetched  # every other byte is counted in device memory
    assert six.traffic.device_read > 6 * 2 * 256 * (256 + 2 * 1024 + 256) and six.traffic.device_written > fetched
    path = critical_path(three.model.commands)
    assert path[0].start == 0 and path[-1].end == max(rows[:, Command.DONE].max() for rows in three.model.commands)
    assert all(a.end == b.start for a, b in pairwise(path))
    parts = shares(path, *three.ends[:2], copies=True)
    assert sum(share for *_, share in parts) == pytest.approx(1)
    assert {memory for *_, memory, _ in parts} <= {"", "device memory", "host link"}


def test_fetching_is_the_wait_of_a_slow_link():
    """With a link of a hundredth of the rate, the path of a layer is the copies of pages. A token has one row of hidden
    states, which one core computes."""
    system, model = load_system("vrex8"), replace(LLAMA3_8B, **SMALL)
    numbers = step_numbers(Point("vrex8", "text", 10000))
    step = workload_step(system.core.config, numbers)
    result = compile_step(system.core.config, model, step, tokens=1, past=10000).run(
        timing(system.replace(link={"nominal_gbps": 0.04}))
    )
    parts = shares(critical_path(result.model.commands), *result.ends[:2], copies=True)
    assert parts[0][2] == "host link" and parts[0][3] > 0.5
    fetched = 8 * numbers.fetched * 16384
    assert result.repeated > fetched / 0.04e9 * 800e6


@pytest.mark.parametrize("past", [1000, 5000, 40000])
def test_numbers_of_a_step_are_those_of_the_formula(past):
    """Retrieved and fetched tokens of `Work`, rounded to whole clusters."""
    numbers = step_numbers(Point("vrex8", "frame", past))
    assert numbers.selected == round(0.327 * past / 32)
    missing = max(0, past - 4096) / past
    assert numbers.fetched == round(0.327 * past * missing * (1 - 0.31) / 32)
    data = workload_step(Config.preset("paper"), numbers).later
    assert all(len(data.pages[head]) == numbers.selected for head in range(8))
    assert len(data.fetched) == 8 * numbers.fetched
    assert data.past(0) == 32 * numbers.selected
    assert np.mean([passes for passes, _ in data.rows[0]]) == pytest.approx(12.7, abs=0.03)


def test_open_reads_the_clusters_of_the_window():
    """Not those that have left it in the history of the stream."""
    numbers = step_numbers(Point("vrex8", "frame", 10_000))
    opening = workload_step(Config.preset("paper"), numbers).later.opening
    (candidates,) = (value for act, value in opening.actions if act is Act.CANDIDATES)
    assert (candidates.records, candidates.expired) == (ClusterRule().window_tokens // 32, 0)


@pytest.mark.parametrize(
    ("policy", "past", "attended", "fetched_pages"),
    [
        ("full", 1000, 1000, 31),  # 32 pages, of which the newest one stays in device memory
        ("quickprefill", 10000, 5000, 29),  # half of the tokens; 128 pages and the newest one stay
        ("rekv", 10000, 5840, 238),  # 58.4 % of the frames, a page each
        ("window", 10000, 2 * 32 + 15 * 32 + 1000 % 32, 0),  # sink and recent pages, the last one partly filled
    ],
)
def test_steps_of_the_policies(policy, past, attended, fetched_pages):
    """Attended tokens, fetched pages, kept and released tokens of a frame, from the definition of each policy."""
    point = Point("vrex8", "frame", past, policy)
    data = runs.step_data(point).first
    assert [data.past(head) for head in range(8)] == [attended] * 8
    assert len(data.fetched) == 8 * fetched_pages
    assert len(data.appends) == (5 if policy == "quickprefill" else 10)
    assert (data.kept is not None) == (policy == "quickprefill")
    assert len(data.releases) == (policy == "window")
    cost = programs.formula_cost(point)
    pages = 8 * fetched_pages * PAGE_BYTES * (10 / 32 if policy == "rekv" else 1) * LLAMA3_8B.layers
    assert pages == pytest.approx(cost.link_bytes, rel=0.05)


def test_clusters_of_the_core_limit_the_frames_of_rekv():
    assert runs.fits(Point("vrex8", "frame", 10_000, "rekv"))
    with pytest.raises(ValueError, match="past must be at most 10230"):
        step_numbers(Point("vrex8", "frame", 40_000, "rekv"))
    with pytest.raises(ValueError, match="past must be at most 32736"):
        step_numbers(Point("vrex8", "frame", 40_000, "mosaic"))
    with pytest.raises(ValueError, match="tokens must be at most 32768"):
        step_numbers(Point("vrex8", "frame", 40_000, "infinigenp"))


def test_steps_of_mosaic():
    """All heads select the text and the clusters of a budget; pages that are fetched stay, and others leave without a
    copy. The tokens are stored by a second program."""
    point = Point("vrex8", "text", 5000, "mosaic")
    numbers, step = step_numbers(point), runs.step_data(point)
    data, stored = step.first, step.stored
    assert runs.program_policy(point, numbers).budget == 640 - 32 and numbers.fetched > 0
    assert [data.past(head) for head in range(8)] == [640] * 8
    assert [[select.cluster for select in data.selects[head]] for head in range(8)] == [
        [select.cluster for select in data.selects[0]]
    ] * 8
    assert data.selects[0][0].cluster == 0 and not data.appends
    frames = range(step.store_bytes, step.store_bytes + step.frame_bytes)
    assert len(data.fetched) == 8 * numbers.fetched and all(piece.target in frames for piece in data.fetched)
    assert len(stored.appends) == 1 and not data.committing.pieces and not stored.committing.pieces


def test_steps_of_infinigen():
    """The first layer selects all tokens, those of the step included, by rows of which each marks a part."""
    point = Point("vrex8", "text", 1000, "infinigenp")
    step = runs.step_data(point)
    assert [(step.first.past(head), step.later.past(head)) for head in range(8)] == [(1000, 68)] * 8
    assert len(step.first.selects[0]) == 1001 and len(step.first.rows[0]) == -(-1001 // 64)
    assert len(step.later.rows[0]) == 4 and {levels for _, levels in step.later.rows[0]} == {4}
    assert step.later.opened == [True] and step.later.clusters == 1000


def test_windows_of_codecsight():
    """Mean slots of a stride from its frames, and the slots that are taken over from the plan of the window."""
    numbers = step_numbers(Point("vrex8", "frame", 10_000, "codecsight"))
    assert (numbers.before, numbers.refreshed, numbers.refreshed_before) == (715, 0.25, 240)
    policy = programs.PROGRAMS["codecsight"]
    carries = runs.carried(policy, 10)
    moved = {carry.target + n: carry.source + n for carry in carries for n in range(carry.count)}
    refreshed = {slot for frame in (0, 16, 32, 48) for slot in range(10 * frame, 10 * frame + 10)}
    assert moved.keys() == set(range(640)) - refreshed and len(carries) == 4
    assert all(source == target + 160 for target, source in moved.items())


def test_programs_besides_the_layers():
    """Store of Mosaic, carry and step of CodecSight with small layers: bytes from the numbers of tokens."""
    system, model = load_system("vrex8"), replace(LLAMA3_8B, **SMALL)
    config, policy = system.core.config, programs.PROGRAMS["codecsight"]
    carries = runs.carried(policy, 10)
    few, many = (
        compile_carry(config, model, policy, carries, slots=800, layers=layers).run(timing(system)) for layers in (1, 2)
    )
    entry = runs._repeated(few, many)
    read, written = entry["repeated traffic"][:2]
    assert written == 600 * 2 * 2048  # keys and values of 60 frames
    assert written < read < 1.2 * written  # also the angles
    window = compile_window_step(config, model, policy, tokens=1, before=800, slots=801, layers=2).run(timing(system))
    weights = 2 * 256 * (2 * 4096 + 2 * 1024 + 3 * 512)
    assert window.moved[0].device_read > weights + 800 * 4096 and window.traffic.host == 0
    point = Point("vrex8", "frame", 700, "mosaic")
    numbers, step = step_numbers(point), runs.step_data(point)
    options = {"tokens": 10, "past": 640, "policy": runs.program_policy(point, numbers)}
    stored = compile_store(config, model, step, layers=1, **options).run(timing(system))
    assert stored.traffic.device_written > 10 * 4096 and stored.cycles > 10 * 21 * 2  # comparisons


def test_sum_of_entries():
    one = {"cycles": 100, "repeated": 30, "traffic": [8, 0], "repeated traffic": [4, 0], "critical path": ["a"]}
    other = {"cycles": 10, "repeated": 2, "traffic": [1, 6], "repeated traffic": [1, 2]}
    assert runs._sum_of((one, 1), (other, 0.5)) == one | {
        "cycles": 105, "repeated": 31, "traffic": [8, 3], "repeated traffic": [4, 1],
    }  # fmt: skip


def test_bounded_policies_have_one_record():
    assert Point("vrex8", "text", 40_000, "codecsight").name == "vrex8 codecsight text 1000"
    assert Point("vrex8", "frame", 40_000, "window").name == "vrex8 window frame 1000"
    assert Point("vrex8", "frame", 40_000, "full").name == "vrex8 full frame 40000"


# points that differ by more than 5 %, see the page of the programs
LARGE_DIFFERENCES = {"vrex8-plus frame 700000": 0.09}


def test_formula_agrees_with_the_programs():
    """Device bytes and time of every recorded run."""
    rows = [row for row in program_rows() if row.traffic is not None]
    assert {row.point.policy for row in rows} >= {"full", "window", "oaken"}
    for row in rows:
        largest = LARGE_DIFFERENCES.get(row.point.name, 0.05)
        # the cores of a head load all patches for its values; the formula has the loads of the keys for them
        most = 0.07 if row.point.name == "vrex48 vision" else 0.05
        assert row.traffic.device == pytest.approx(row.formula.device_bytes, rel=most), row.point
        assert abs(row.formula_error) < largest, row.point


def test_formula_agrees_with_the_programs_of_plus():
    """Time of every recorded step of `PLUS_POINTS`."""
    costs = {point.name: (programs.formula_cost(point), programs.program_cost(point)) for point in programs.PLUS_POINTS}
    assert len(costs) == 30 and all(program for _, program in costs.values())
    for name, (formula, program) in costs.items():
        assert formula.total_s == pytest.approx(program.total_s, rel=LARGE_DIFFERENCES.get(name, 0.05)), name


def test_cost_of_a_program():
    point = Point("vrex8", "frame", 10_000, "full")
    cost, traffic = programs.program_cost(point), programs.program_traffic(point)
    assert cost.source == "program" and cost.total_s == pytest.approx(program_cycles(point) / 800e6)
    assert cost.device_bytes == traffic.device_read + traffic.device_written
    # copies that begin in a layer can end in the next one
    assert cost.link_bytes == pytest.approx(32 * 8 * 312 * PAGE_BYTES, rel=0.01)
    assert cost.energy_j > 12 * cost.total_s + cost.device_bytes * 8 * 5e-12  # four lanes of 3 W, LPDDR5
    assert programs.program_cost(Point("vrex8", "frame", 700_000, "full")) is None


def test_a_step_refuses_numbers_that_contradict_each_other():
    with pytest.raises(ValueError, match="selected must be"):
        StepNumbers(past=64, tokens=1, cluster_tokens=32, selected=3, fetched=0, rows=4, passes=1)
    with pytest.raises(ValueError, match="fetched must be"):
        StepNumbers(past=64, tokens=1, cluster_tokens=32, selected=1, fetched=2, rows=4, passes=1)


def test_vision_tower_has_an_end_of_every_layer():
    tower = replace(LLAMA3_8B.vision, hidden=128, heads=2, ffn=256, patches=81)
    result = compile_vision(Config.preset("paper"), replace(LLAMA3_8B, hidden=256, vision=tower)).run(
        timing(load_system("vrex8"))
    )
    assert len(result.ends) == 2 and result.ends[0] < result.ends[1] < result.cycles


def test_link_has_its_rate_in_both_directions():
    link = NominalLink(4.0, 800.0)
    assert [link.ready(0, 0, 2048, False) for _ in range(3)] == [410, 820, 1229]  # 512 ns each
    assert link.ready(0, 0, 2048, True) == 410


def test_memory_that_a_command_waits_for():
    assert memory_of("MULTIPLY", True) == "" and memory_of("LOAD", True) == "device memory"
    assert memory_of("SELECT", True) == memory_of("FETCH", True) == "host link"
    assert memory_of("SELECT", False) == "device memory"


def test_rows_of_recorded_points():
    rows = program_rows()
    assert {row.point.system for row in rows} == {"vrex8", "vrex48"}
    for row in rows:
        assert row.program_ms > row.bound_ms > 0, row.point
        assert row.limit or row.point.stage == "vision"
    assert program_cycles(Point("vrex8", "frame", 123)) is None


def test_reproduce_shows_the_programs():
    """Without a figure all rows, with one of Fig. 13 those that the paper prints, with another one none."""
    result = reproduce("vrex.fig13.frame_edge_b1")
    printed = [row for row in program_rows() if row.paper_ms is not None]
    assert list(result.programs) == printed and "program / bound" in result.as_text()
    assert {row.point.stage for row in printed} == {"frame", "text"} and len(printed) == 5 + 2 + 2 + 2
    assert result.json()["programs"][0]["point"] == result.programs[0].point.name
    assert not reproduce("vrex.peak").programs


def test_explanation_uses_the_nearest_recorded_point():
    waits = program_waits(Request(tokens=39000))
    assert waits is not None and waits.past == 40000
    assert "Critical path of a layer" in str(waits) and "unit" in str(waits)
    for other in (
        Request(tokens=39000, batch=2),
        Request("a100", "full", tokens=39000),
        Request(tokens=39000, changes={"core.cores": 4}),
        Request(tokens=39000, workload="coin"),
    ):
        assert program_waits(other) is None
