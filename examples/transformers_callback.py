"""Traces the Trainer of Transformers: one callback, and a window of 25 updates is in `run/fit`."""

# torch's annotations are incomplete.
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

# Before torch: its operators arrive live then, which costs less.
from stepscope.transformers import StepscopeCallback

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main() -> None:
    torch.manual_seed(0)
    size = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(size)
    words = torch.randint(0, 64, (64, 8))
    data: Any = [{"input_ids": row, "labels": row.sum() % 2} for row in words]
    tracing = StepscopeCallback(output_dir="run")
    arguments = TrainingArguments(
        output_dir="out", max_steps=30, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        logging_steps=10, report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[tracing])
    with tracing:
        trainer.train()
    if tracing.profiler is not None:
        print(tracing.profiler.summary(top=8))
        print(tracing.profiler.report())


if __name__ == "__main__":
    main()
