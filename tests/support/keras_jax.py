"""Trainings of Keras on its JAX backend, run as a program by `tests/system/compat/test_keras.py` in an environment that has no torch.

The argument is a directory. The recorded facts are printed as JSON, on the last line.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import stepscope as sc
from stepscope.keras import StepscopeCallback
from stepscope.runtime.events.record import Kind

keras: Any = import_module("keras")

POINTS, VALUES = np.random.rand(16, 4), np.random.rand(16, 1)


def recorded_facts(callback: StepscopeCallback, made: dict[str, sc.exporters.MemoryExporter]) -> dict[str, Any]:
    """The recorded facts, run by run."""
    callback.raise_errors()
    assert callback.profiler is not None
    assert callback.profiler.audit() == ()
    return {
        stage: {
            "steps": [[step.number for step in window.steps] for window in memory.windows],
            "complete": all(window.complete for window in memory.windows),
            "spans": memory.names(kind=Kind.SPAN),
            "counters": memory.names(kind=Kind.COUNTER),
        }
        for stage, memory in made.items()
    }


def traced(directory: Path, **given: Any) -> tuple[StepscopeCallback, dict[str, sc.exporters.MemoryExporter]]:
    """A callback, and what will have its runs."""
    made: dict[str, sc.exporters.MemoryExporter] = {}

    def make(run: Path) -> sc.exporters.MemoryExporter:
        made[run.name] = sc.exporters.MemoryExporter()
        return made[run.name]

    return StepscopeCallback(str(directory), exporters=[make], **given), made


def main(directory: Path) -> dict[str, Any]:
    """Trains, evaluates and predicts, then trains on."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    first, runs = traced(directory / "first", schedule=sc.schedule(wait=2, warmup=0, active=3, repeat=1))
    batches: dict[str, Any] = {"batch_size": 2, "verbose": 0}
    model.fit(POINTS, VALUES, **batches, callbacks=[first], validation_data=(POINTS[:4], VALUES[:4]))
    model.evaluate(POINTS, VALUES, **batches, callbacks=[first])
    model.predict(POINTS, **batches, callbacks=[first])
    second, further = traced(directory / "second", profile_batch=(7, 10))
    model.fit(POINTS, VALUES, **batches, epochs=2, callbacks=[second])
    return {
        "backend": keras.backend.backend(),
        "torch": "torch" in sys.modules,
        "first": recorded_facts(first, runs),
        "second": recorded_facts(second, further),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
