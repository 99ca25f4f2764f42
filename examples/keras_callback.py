"""Traces Keras on its torch backend: one callback, and a window of batches 5 to 30 is in `run/fit`."""

# Keras has no annotations.
# mypy: disable-error-code="import-untyped"
# pyright: basic, reportArgumentType=false

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

# Before torch: its operators arrive live then, which costs less.
from stepscope.keras import StepscopeCallback  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402


def main() -> None:
    points = np.random.default_rng(0).random((640, 2))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    with StepscopeCallback(log_dir="run", profile_batch=(5, 30)) as tracing:
        model.fit(points, points.sum(1, keepdims=True), batch_size=16, verbose=0, callbacks=[tracing])
    if tracing.profiler is not None:
        print(tracing.profiler.summary(top=8))
        print(tracing.profiler.report())


if __name__ == "__main__":
    main()
