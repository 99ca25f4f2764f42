"""Which rank holds up others that wait for it in every step."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.stretches import Stretches
from stepscope.collector.live.waiting import Allowance, Waiting
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.journal import format as fmt
from tests.support.basics import require
from tests.support.collecting import collecting, until
from tests.support.launch import start
from tests.unit.collector.test_collector_live import SECOND, START, events_frame, run_of, steps

NAME = 77
"""Id of the name of a collective."""
STEP = SECOND // 10

DDP = """
import os, sys, time
import stepscope as sc
from stepscope.exporters.stream.exporter import CollectorExporter
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
with sc.trace(
    backends=[sc.TorchBackend()], exporters=[CollectorExporter(sys.argv[1])], options=sc.Options(journal=False)
) as profiler:
    for step in range(60):
        if rank == 1:
            time.sleep(0.03)
        model(torch.randn(8, 64)).sum().backward()
        profiler.step()
dist.destroy_process_group()
"""


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30), st.integers(0, 60), st.integers(0, 30))
def test_stretches_are_what_is_covered(parts: list[tuple[int, int]], start: int, length: int) -> None:
    """However they overlap, nest and come, each moment counts once."""
    stretches = Stretches(1000)
    covered: set[int] = set()
    for at, size in parts:
        stretches.add(np.array([at]), np.array([at + size]))
        covered |= set(range(at, at + size))
    (found,) = stretches.within(np.array([start]), np.array([start + length])).tolist()
    assert found == len(covered & set(range(start, start + length)))


def test_stretches_are_bounded() -> None:
    """The oldest are let go, and it is known since when they are complete."""
    stretches = Stretches(10)
    for at in range(0, 1000, 10):
        stretches.add(np.array([at]), np.array([at + 5]))
    assert len(stretches) == 10 and stretches.complete_from == 900
    assert stretches.within(np.array([900]), np.array([1000])).tolist() == [50]


def life(rank: int, wait: int, *, known: bool = True) -> Stream:
    """A rank whose steps are as long as everybody's, and that waits so much in each."""
    stream = Stream(f"{rank:032x}", run_of(rank))
    waits: Any = empty_block(40)
    waits["ts"] = START + STEP * (1 + np.arange(40)) - wait
    waits["dur"], waits["kind"] = wait, int(Kind.SPAN)
    waits["name"] = strings.intern("gloo:all_reduce" if known else "forward")
    frames = [events_frame(waits, source="recorder"), events_frame(steps([STEP] * 40))]
    stream.took(frames, 0, len(frames))
    return stream


def judged(*ranks: Stream) -> Any:
    """The job that these make."""
    streams = Streams(64)
    for stream in ranks:
        streams.add(stream)
    return Live(streams, Downloads(Path("/nowhere")), exposed=False).snapshot()


def test_the_rank_that_waits_least_is_the_slow_one() -> None:
    """All steps are equally long; where the names of collectives are not known, nobody is blamed."""
    snapshot = judged(life(0, STEP * 6 // 10), life(1, STEP // 10), life(2, STEP * 6 // 10))
    (slow,) = snapshot.job.slowest
    assert (slow.rank, slow.own, slow.step_ms, slow.others_ms) == (1, True, 90.0, 40.0)
    assert {view.step_ms for view in snapshot.ranks} == {100.0}
    snapshot = judged(life(0, STEP * 6 // 10, known=False), life(1, STEP // 10), life(2, STEP * 6 // 10))
    assert snapshot.job.slowest == [] and snapshot.ranks[0].own_ms is None


def test_steps_that_were_not_seen_whole_do_not_count() -> None:
    """When looking into events would cost too much, frames are passed over, and so are the steps that they are of."""
    allowance = Allowance(share=0.0, saved=1e9)
    waiting = Waiting(allowance)
    block: Any = empty_block(1)
    block["name"], block["kind"], block["dur"] = strings.intern("nccl:all_reduce"), int(Kind.SPAN), STEP // 2
    for step in range(10):
        block["ts"] = START + STEP * step
        _, flags, payload = events_frame(block, source="recorder")
        found = fmt.decode_events_header(payload)
        assert found is not None
        if step == 5:
            allowance.spend(2e9)
        if step == 6:
            allowance.spend(-4e9)
        waiting.events(found[0], flags, payload)
    starts = START + STEP * np.arange(10)
    own = waiting.own(starts, np.full(10, STEP))
    assert own.tolist() == [STEP // 2] * 8, "steps 0 to 9 but for the one not seen and the last, which may go on"


def test_a_rank_of_data_parallel_training_is_named(tmp_path: Path) -> None:
    """Two ranks of torch, of which one sleeps: their steps are equally long, and it is named by its own work."""
    require("torch")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with collecting(tmp_path) as collector:
        shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", DDP, collector.url]
        each = [{**shared, "RANK": str(rank)} for rank in range(2)]
        ranks = [start(command, server="torch", env=environment, cwd=tmp_path) for environment in each]
        try:
            assert [rank.wait(100) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        job = until(lambda: (job := collector.get("/v1/job"))["ended"] == 2 and job)
        assert [(slow["rank"], slow["own"]) for slow in job["slowest"]] == [(1, True)]
