"""One rank of the demonstration of a cluster: a small network, trained on all ranks together, with checkpoints.

Settings are in the environment, as `tools.demo_cluster` sets them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import stepscope as sc  # before torch, which looks for a collector of its operators once

import torch  # isort: skip
import torch.distributed as dist  # isort: skip


def main() -> None:
    """Trains from the last checkpoint to the last step; the rank that is to be killed kills itself half-way, once."""
    place, url = Path(os.environ["DEMO_PLACE"]), os.environ["DEMO_URL"]
    steps, slow, killed = (int(os.environ[f"DEMO_{name}"]) for name in ("STEPS", "SLOW", "KILLED"))
    attempt = int(os.environ["DEMO_ATTEMPT"])
    torch.set_num_threads(1)
    untyped: Any = torch  # parts of it have no annotations
    group: Any = dist
    untyped.manual_seed(0)
    group.init_process_group("gloo")
    rank: int = group.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 64))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = place / "checkpoint.pt"
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        first = int(saved["step"])
    profiler = sc.trace(
        name="cluster",
        # The collector is started again meanwhile: ranks that end by then wait for it.
        exporters=[sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(closing_seconds=60))],
        output_dir=place / "runs" / f"rank{rank}-{attempt}",
        schedule=sc.schedule(wait=0, warmup=0, active=20),
        options=sc.Options(close_timeout=20.0),
        start=False,
    )
    profiler.step_num = first
    diary = (place / f"diary-{rank}-{attempt}").open("ab", buffering=0)
    profiler.start()
    with profiler:
        for step in range(first, steps):
            try:
                with sc.span("forward and backward", step=step):
                    loss = model(torch.randn(64, 256)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    time.sleep(0.03 if rank == slow else 0.01)
            finally:  # also when another rank has died: the span has ended
                # But not if SIGTERM has closed the trace inside it: it is there as one that was open.
                recorder = profiler.statistics().recorder
                if recorder is not None and recorder.recording:
                    diary.write(b"%d\n" % step)
            with sc.span("all_reduce"):
                group.all_reduce(loss.detach())
            with sc.span("optimizer"):
                optimizer.step()
            if rank == 0 and step % 10 == 9:
                torch.save({"model": model.state_dict(), "step": step + 1}, checkpoint.with_suffix(".part"))
                checkpoint.with_suffix(".part").replace(checkpoint)
            if rank == killed and attempt == 0 and step == steps // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            profiler.step()
    group.destroy_process_group()


if __name__ == "__main__":
    main()
