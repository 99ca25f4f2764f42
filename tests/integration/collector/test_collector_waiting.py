"""Which rank holds up others that wait for it in every step."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.exporters.stream.step_summary import summary_of
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Phase
from tests.support.basics import require
from tests.support.collecting import collecting, until
from tests.support.launch import start
from tests.unit.collector.test_collector_live import SECOND, START, events_frame, run_of, steps

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


def life(rank: int, wait: int, *, known: bool = True) -> Stream:
    """A rank whose steps are as long as everybody's, and that waits so long in each, in ns. Not `known`: its steps come as events."""
    stream = Stream(f"{rank:032x}", run_of(rank))
    if not known:
        stream.took([events_frame(steps([STEP] * 40))], 0, 1)
        return stream
    facts: Any = np.zeros(40, FACTS_DTYPE)
    facts["step"], facts["begin"] = np.arange(40), START + STEP * np.arange(40)
    facts["end"] = facts["begin"] + STEP
    facts["phases"][:, int(Phase.COMMUNICATION)] = wait
    stream.summarized(summary_of(facts, events=0, lost=0))
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
    assert (slow.rank, slow.own) == (1, True)
    assert (slow.step_ms, slow.others_ms) == (pytest.approx(90, abs=0.4), pytest.approx(40, abs=0.4)), "1/255 of a step"
    assert {view.step_ms for view in snapshot.ranks} == {100.0}
    unknown = life(0, STEP * 6 // 10, known=False)
    snapshot = judged(unknown, life(1, STEP // 10), life(2, STEP * 6 // 10))
    assert snapshot.job.slowest == [] and snapshot.ranks[0].own_ms is None


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
