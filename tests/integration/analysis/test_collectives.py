"""Collectives: how long a step is in them, how long of that it waits for other ranks, and how fast they transfer."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.page.render import report_html
from stepscope.analysis.tables.collectives import CollectiveTable, fastest_of, is_collective
from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.mindspore import Profiler
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind, empty_block
from stepscope.runtime.windows.step_facts import FACTS_DTYPE
from tests.support import mindspore_output as output
from tests.support.basics import missing, require
from tests.support.messages import check_messages

SIZE = 3_000_000


def record(directory: Path, rank: int, seconds: float, steps: int = 14, metadata: Any = None) -> None:
    """A rank that is in a collective for so long in each step; it calls another one more often the higher its number."""
    with sc.trace(output_dir=directory, rank=rank, world_size=2, metadata=metadata) as profiler:
        for _ in range(steps):
            with sc.span("all_reduce", bytes=SIZE):
                time.sleep(seconds)
            for _ in range(rank + 1):
                with sc.span("barrier"):
                    pass
            profiler.step()


@pytest.mark.checklist("D16")
def test_waiting_and_bandwidth_of_ranks(tmp_path: Path) -> None:
    """The rank that is in a collective for the shortest time came last: what others are in it for longer is waiting."""
    record(tmp_path, 0, 0.01)
    record(tmp_path, 1, 0.001)
    answer = explain(tmp_path)
    first, second = ({each.name: each for each in rank.collectives} for rank in answer.ranks)
    waiting, last = first["all_reduce"], second["all_reduce"]
    assert waiting.calls == last.calls == 1 and waiting.bytes == last.bytes == SIZE
    assert waiting.wait_ns is not None and last.wait_ns is not None
    assert waiting.wait_ns > 5e6 and last.wait_ns == pytest.approx(0, abs=1)
    assert waiting.wait_ns == pytest.approx(waiting.ns - last.ns)
    assert waiting.bandwidth == pytest.approx(SIZE / last.ns * 1e9) and waiting.bandwidth == pytest.approx(
        last.bandwidth
    )
    for ranks in (first, second):
        assert ranks["barrier"].wait_ns is None and ranks["barrier"].bytes is None, "ranks call it differently often"
    text = " ".join(str(answer).split())
    assert "Collectives " in text and " a step in all_reduce (1 call), of that " in text
    page = report_html(tmp_path)
    assert "Waiting for ranks" in page and "not known" in page


@pytest.mark.checklist("D16")
def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    """It may be the one that the others waited for, so their waiting is not known."""
    for rank in range(2):
        with sc.trace(output_dir=tmp_path, rank=rank, world_size=3) as profiler:
            for _ in range(14):
                with sc.span("all_reduce", bytes=SIZE):
                    time.sleep(0.001)
                profiler.step()
    answer = explain(tmp_path)
    assert [each.wait_ns for rank in answer.ranks for each in rank.collectives] == [None, None]


def test_groups_of_ranks_are_not_compared(tmp_path: Path) -> None:
    """Runs of one name on two ranks may be of two groups, which do not wait for each other."""
    groups = [{"name": "a", "kind": "tensor", "ranks": [0]}, {"name": "b", "kind": "tensor", "ranks": [1]}]
    layout = {"parallel_layout": {"sizes": {"tensor": 2}, "groups": groups}}
    record(tmp_path, 0, 0.005, metadata=layout)
    record(tmp_path, 1, 0.001, metadata=layout)
    answer = explain(tmp_path)
    assert [each.wait_ns for rank in answer.ranks for each in rank.collectives if each.name == "all_reduce"] == [
        None,
        None,
    ]


@pytest.mark.checklist("D16")
def test_bytes_of_torchs_collectives(tmp_path: Path) -> None:
    """Known from shapes and types of their tensors."""
    torch = require("torch")
    if not torch.distributed.is_available():
        missing("torch.distributed", "Install a build of torch that has it, as those of PyPI do.")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with sc.trace(backends=[sc.TorchBackend(record_shapes=True)], output_dir=tmp_path) as profiler:
            torch.distributed.all_reduce(torch.ones(8))
            torch.distributed.broadcast(torch.ones(3, 5, dtype=torch.float64), 0)
            profiler.step()
    finally:
        torch.distributed.destroy_process_group()
    table = CollectiveTable()
    for batch in sc.load(tmp_path).ranks[0].batches():
        table.update(batch)
    found = {run.name: run.bytes for run in table.runs}
    assert (found["gloo:all_reduce"], found["gloo:broadcast"]) == (32, 120)
    assert found["c10d::allreduce_"] == -1, "of a list of tensors nothing says the type"
    assert fastest_of([table]) == {}


@pytest.mark.checklist("D10", "D16", "C4", "B11")
def test_files_of_mindspore_for_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An analysis of both ranks has waiting and bandwidth with MindSpore's keys; an analysis of one has no waiting."""
    for rank, seconds in ((0, 0.1), (1, 0.001)):
        monkeypatch.setenv("RANK_ID", str(rank))
        monkeypatch.setenv("RANK_SIZE", "2")
        profiler = Profiler(
            output_path=tmp_path, start_profile=False, profile_communication=True, data_simplification=False
        )
        profiler.start()
        for _ in range(3):
            with sc.span("AllReduce-op4", bytes=SIZE):
                time.sleep(seconds)
            with sc.span("nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0", bytes=1000):
                pass
            profiler.step()
        profiler.stop()
        profiler.analyse()
        alone = communication(profiler.directories[0], PRODUCTS)["step0"]["collective"]["AllReduce-op4"]
        assert "Wait Time(ms)" not in alone["Communication Time Info"]
        assert alone["Communication Bandwidth Info"]["ALL"]["Transit Size(MB)"] == 3
        with (profiler.directories[0] / PRODUCTS / f"hccl_raw_{rank}.csv").open(newline="") as file:
            assert {row["wait_cost"] for row in csv.DictReader(file)} == {""}, "not known"
    Profiler.offline_analyse(tmp_path, data_simplification=False)
    found: dict[int, Any] = {}
    (first,) = [window for window in output.windows_below(tmp_path) if output.info(window)["rank_id"] == "0"]
    for window in output.windows_below(tmp_path):
        found[int(output.info(window)["rank_id"])] = communication(window, f"{PRODUCTS}-2")
    for step in ("step0", "step1", "step2"):
        waiting, last = (found[rank][step]["collective"]["AllReduce-op4"] for rank in (0, 1))
        times, shortest = waiting["Communication Time Info"], last["Communication Time Info"]
        assert shortest["Wait Time(ms)"] == 0 == shortest["Wait Time Ratio"] and times["Wait Time(ms)"] > 5
        assert times["Wait Time(ms)"] + times["Transit Time(ms)"] == pytest.approx(times["Elapse Time(ms)"])
        bandwidth = waiting["Communication Bandwidth Info"]["ALL"]
        assert bandwidth["Bandwidth(GB/s)"] == pytest.approx(3 / times["Transit Time(ms)"], abs=1e-3)
        assert bandwidth["Size Distribution"] == {"3.0": [1, pytest.approx(times["Transit Time(ms)"])]}
        total = found[0][step]["collective"]["Total Op Info"]
        assert total["Communication Time Info"]["Wait Time(ms)"] == times["Wait Time(ms)"]
        with (first / f"{PRODUCTS}-2" / "hccl_raw_0.csv").open(newline="") as file:
            rows = {row["step_num"]: row for row in csv.DictReader(file)}
        row = rows[step.removeprefix("step")]
        number, cost, wait, _ = json.loads(row["communication_operator_cost"])["AllReduce-op4"]
        assert number == row["step_num"] and wait == times["Wait Time(ms)"]
        assert cost == pytest.approx(times["Transit Time(ms)"]) and float(row["communication_cost"]) > cost
        time_ms, kilobytes, speed = json.loads(row["link_info"])["0-1"]["ALL"]
        assert kilobytes == 1 and speed == pytest.approx(kilobytes / time_ms * 1000)
    assert [row["wait_cost"] for row in rows.values()] == [""] * 4, "that of the transfer is not known"
    assert list(rows) == ["0", "1", "2", "-"]
    costs = [json.loads(row["communication_operator_cost"])["AllReduce-op4"][2] for row in rows.values()]
    assert costs[3] == pytest.approx(sum(costs[:3]) / 3)
    for window in output.windows_below(tmp_path):
        matrix = json.loads((window / PRODUCTS / "communication_matrix.json").read_text())
        (links,) = matrix["step1"]["p2p"].values()
        assert list(links) == ["0-1"] and links["0-1"]["Transit Size(MB)"] == 0.001
        assert links["0-1"]["Transport Type"] == "ALL" and links["0-1"]["Bandwidth(GB/s)"] > 0


def record_windows(
    directory: Path, rank: int, seconds: float, times: int, monkeypatch: pytest.MonkeyPatch, size: int = 2
) -> tuple[Path, ...]:
    """A rank of MindSpore's profiler that begins so many recordings of one step; their directories."""
    monkeypatch.setenv("RANK_ID", str(rank))
    monkeypatch.setenv("RANK_SIZE", str(size))
    profiler = Profiler(
        output_path=directory, start_profile=False, profile_communication=True, data_simplification=False
    )
    for _ in range(times):
        profiler.start()
        with sc.span("AllReduce-op4", bytes=SIZE):
            time.sleep(seconds)
        profiler.step()
        profiler.stop()
    return profiler.directories


def waits_below(directory: Path) -> list[float | None]:
    """ms that ranks waited, by rank, then by window; `None` if that is not known."""
    found: list[tuple[int, int, float | None]] = []
    for window in output.windows_below(directory):
        if not (window / PRODUCTS).exists():
            continue
        for name, step in communication(window, PRODUCTS).items():
            times = step["collective"]["AllReduce-op4"]["Communication Time Info"]
            found.append((int(output.info(window)["rank_id"]), int(name[4:]), times.get("Wait Time(ms)")))
    return [wait for _, _, wait in sorted(found, key=lambda each: each[:2])]


@pytest.mark.checklist("D16")
def test_several_recordings_of_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the same steps are compared, also where a rank has the same step twice."""
    for rank, seconds in ((0, 0.03), (1, 0.001)):
        record_windows(tmp_path, rank, seconds, 2, monkeypatch)
        record_windows(tmp_path, rank, seconds, 1, monkeypatch)
    analysis = Profiler.offline_analyse(tmp_path, data_simplification=False)
    assert analysis.complete and analysis.notes == ()
    waits = waits_below(tmp_path)
    assert len(waits) == 6 and all(wait is not None and wait > 5 for wait in waits[:3]) and waits[3:] == [0, 0, 0]


@pytest.mark.checklist("D16")
@pytest.mark.parametrize("damaged", [True, False])
def test_waiting_that_is_not_known(damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rank, and in steps that ranks recorded differently often, there is no waiting, and a sentence says why."""
    record_windows(tmp_path, 0, 0.03, 1, monkeypatch, 3)
    record_windows(tmp_path, 1, 0.03, 1, monkeypatch, 3)
    (last, *_) = record_windows(tmp_path, 2, 0.001, 1, monkeypatch, 3)
    if damaged:
        (journal,) = (last / RAW).rglob("journal")
        journal.write_bytes(b"no journal")
    else:
        record_windows(tmp_path, 2, 0.001, 1, monkeypatch, 3)
    analysis = Profiler.offline_analyse(tmp_path, data_simplification=False)
    (note,) = analysis.notes
    check_messages(note, *(("3", "rank 2") if damaged else ("step 0",)))
    assert note in str(analysis)
    assert waits_below(tmp_path) == [None] * (2 if damaged else 4)


def communication(directory: Path, folder: str) -> Any:
    """The file of a window."""
    return json.loads((directory / folder / "communication.json").read_text())


def test_only_spans_count(tmp_path: Path) -> None:
    """Instants and counters of such names are no collectives."""
    with sc.trace(output_dir=tmp_path) as profiler:
        sc.instant("all_reduce", bytes=7)
        sc.counter("all_reduce", 1.0)
        profiler.step()
    table = CollectiveTable()
    kinds: set[int] = set()
    for batch in sc.load(tmp_path).ranks[0].batches():
        table.update(batch)
        kinds |= set(batch.events["kind"].tolist())
    assert not table.runs and {Kind.INSTANT, Kind.COUNTER} <= kinds


def test_collectives_of_mindspore() -> None:
    """Their names have a scope in front and a number at the end; operators with names that begin alike are none."""
    for name in (
        "AllReduce-op4",
        "Default/network/AllReduce-op4",
        "Gradients/Default/AlltoAll-op1",
        "Default/AllGatherV-op0",
    ):
        assert is_collective(name, "cpu_op"), name
    for name in ("Default/BroadcastTo-op2", "Default/AllReduceLoss", "Default/MatMul-op1"):
        assert not is_collective(name, "cpu_op"), name


def test_more_collectives_than_there_is_room_for() -> None:
    """Those of a step are as many as in the steps whose collectives are known."""
    events = empty_block(200_000)
    events["kind"], events["dur"] = Kind.SPAN, 1_000
    events["name"], events["category"] = strings.intern("gloo:all_reduce"), strings.category("user_annotation")
    events["step"] = np.arange(len(events)) // 20
    events["ts"] = np.arange(len(events)) * 2_000
    table = CollectiveTable()
    table.update(EventBatch("recorder", 0, events, b""))
    steps = np.zeros(10_000, FACTS_DTYPE)
    steps["step"] = np.arange(len(steps))
    steps["begin"], steps["end"] = steps["step"] * 40_000, (steps["step"] + 1) * 40_000
    (found,) = table.answer(steps, {})
    assert table.left_out and found.calls == pytest.approx(20, rel=0.01)
