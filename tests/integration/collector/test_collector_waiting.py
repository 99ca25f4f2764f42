"""Which rank holds up others that wait for it in every step."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tests.support.basics import require
from tests.support.collecting import collecting, until
from tests.support.launch import start

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
        until(lambda: collector.get("/v1/job")["ended"] == 2)
        until(lambda: [view["rank"] for view in collector.get("/v1/ranks") if view["slow"]] == [1])
        findings = collector.get("/v1/job")["verdicts"][0]["findings"]
        assert "it comes last to the collectives in" in findings[0]["evidence"][0]
