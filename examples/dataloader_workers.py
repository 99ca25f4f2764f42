"""Traces a training loop together with the worker processes that load its data: open `trace.json` in Perfetto."""

# torch's annotations are incomplete.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time

import stepscope as sc

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[torch.Tensor]):
    """Data that takes its time to be read and decoded."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, item: int) -> torch.Tensor:
        with sc.span("read", item=item):
            time.sleep(0.002)
        with sc.span("decode"):
            return torch.rand(3, 32, 32)


def take_part(worker: int) -> None:
    sc.join()


def main() -> None:
    loader = DataLoader(Images(), batch_size=4, num_workers=2, worker_init_fn=take_part)
    with sc.trace(exporters=[sc.ChromeTraceExporter("trace.json")], output_dir="run") as profiler:
        for images in loader:
            with sc.span("train"):
                images.mean()
            profiler.step()
    print(profiler.summary(top=5))
    accounts = profiler.statistics().recorder
    print({worker.name: worker.drained for worker in accounts.workers} if accounts else "nothing was recorded")


if __name__ == "__main__":
    main()
