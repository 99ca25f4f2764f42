"""Traces a loop under Accelerate: our handler for its `profile`, a tracker for what is logged."""

# Annotations of torch and Accelerate are incomplete.
# mypy: allow-untyped-calls, disable-error-code="import-untyped"
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

# Before torch: its operators arrive live then, which costs less.
import stepscope as sc
from stepscope.accelerate import AccelerateRun, StepscopeProfileKwargs, StepscopeTracker

import torch
from accelerate import Accelerator


def main() -> None:
    handler = StepscopeProfileKwargs(
        schedule_option={"wait": 1, "warmup": 1, "active": 10, "repeat": 2}, output_trace_dir="traces"
    )
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[handler], log_with=[StepscopeTracker(handler)]
    )
    accelerator.init_trackers("line", config={"rate": 0.1})
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    with accelerator.profile() as tracing:
        for _ in range(48):
            points = torch.rand(32, 2)
            with accelerator.accumulate(model), sc.span("micro_step"):
                loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item()})
                tracing.step()
    assert isinstance(tracing, AccelerateRun)
    print(tracing.key_averages().table(sort_by="self_cpu_time_total", row_limit=8))
    print(tracing.metrics())
    accelerator.end_training()


if __name__ == "__main__":
    main()
