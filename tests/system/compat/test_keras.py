"""Keras on its torch backend, really training, with the callback."""

# Keras has no annotations.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# mypy: disable-error-code="no-untyped-call,import-untyped"

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from tests.support.basics import ROOT, Deferred, jax_python
from tests.support.frameworks import Runs, check_well
from tests.support.launch import run_to_end
from tests.support.messages import refused

os.environ["KERAS_BACKEND"] = "torch"
keras: Any = Deferred("keras")
ours: Any = Deferred("stepscope.keras")

# Warnings of Keras 3.15 with torch 2.13 and numpy 2 in `predict`.
pytestmark = [
    pytest.mark.needs("keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

CYCLE = sc.schedule(wait=1, warmup=1, active=3, repeat=1)


def model(**optimizer: Any) -> Any:
    """A line through random points."""
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="line")])
    made.compile(optimizer=keras.optimizers.SGD(0.01, **optimizer), loss="mse")
    return made


def fit(made: Any, *callbacks: Any, batches: int = 8, epochs: int = 1, **given: Any) -> Any:
    """Trains on so many batches of two points."""
    return made.fit(
        *data(batches), batch_size=2, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks), **given
    )


def data(batches: int) -> Any:
    """Points and values."""
    return np.random.rand(2 * batches, 4), np.random.rand(2 * batches, 1)


def test_profile_batch_is_as_in_tensorboard(tmp_path: Path) -> None:
    """One batch or a range, counted from 1; 0 for none. Keras's own callback refuses that on this backend."""
    with pytest.raises(ValueError, match="torch"):
        keras.callbacks.TensorBoard(str(tmp_path / "theirs"), profile_batch=5)
    for given, expected in ((5, [(4,)]), ("2,4", [(1, 2, 3)]), ((1, 2), [(0, 1)])):
        runs = Runs()
        callback = ours.StepscopeCallback(str(tmp_path / str(given)), profile_batch=given, exporters=[runs])
        fit(model(), callback)
        check_well(callback)
        assert runs.steps("fit") == expected
    used = model()
    fit(used, batches=5)
    runs = Runs()
    fit(used, ours.StepscopeCallback(str(tmp_path / "again"), profile_batch=(2, 3), exporters=[runs]))
    assert runs.steps("fit") == [(6, 7)]  # as there, batches of this training
    off = ours.StepscopeCallback(str(tmp_path / "off"), profile_batch=0)
    fit(model(), off)
    assert off.profiler is None
    for wrong in ((4, 2), -1, (0, 3), "two", (1, 2, 3)):
        with refused(ValueError, "profile_batch"):
            ours.StepscopeCallback(profile_batch=wrong)
    with refused(ValueError, "schedule", "profile_batch"):
        ours.StepscopeCallback(profile_batch=3, schedule=CYCLE)


def logging() -> Any:
    """A callback that logs what is no single number, as metrics without an average do."""

    def end(epoch: int, logs: Any) -> None:
        logs["f1"], logs["note"], logs["one"] = np.array([0.1, 0.2, 0.3]), "text", np.array(0.5)

    return keras.callbacks.LambdaCallback(on_epoch_end=end)


def test_a_log_value_that_is_no_number_costs_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Epochs are counted from the first one, the numbers next to it are counters, and each name is reported once."""
    runs = Runs()
    callback = ours.StepscopeCallback(
        str(tmp_path), exporters=[runs], unit="epoch", schedule=sc.schedule(wait=3, warmup=0, active=3, repeat=1)
    )
    fit(model(), logging(), callback, batches=3, epochs=7, initial_epoch=2)
    assert runs.steps("fit") == [(3, 4, 5)]
    assert {"loss", "one"} <= set(runs["fit"].names(kind=Kind.COUNTER))
    assert [str(error).partition(" is no counter")[0] for error in callback.errors] == [
        "the logged value 'f1' of type ndarray",
        "the logged value 'note' of type str",
    ]
    assert caplog.text.count("'f1'") == 1


def test_stages_have_steps_of_their_own(tmp_path: Path) -> None:
    """Validation in a training is a span of its step; evaluation and prediction count their batches from 0."""
    runs = Runs()
    callback = ours.StepscopeCallback(str(tmp_path), exporters=[runs], schedule=None)
    made = model()
    fit(made, callback, batches=4, validation_data=data(3), validation_batch_size=2)
    made.evaluate(*data(5), batch_size=2, verbose=0, callbacks=[callback])
    made.predict(data(4)[0], batch_size=2, verbose=0, callbacks=[callback])
    check_well(callback)
    assert runs.stages == ["fit", "evaluate", "predict"]
    assert runs.steps("fit")[0][:4] == (0, 1, 2, 3)
    assert runs.spans("fit").count("evaluate") == 1 and runs.spans("fit").count("test_step") == 3
    assert runs.steps("evaluate")[0][:5] == (0, 1, 2, 3, 4)
    assert runs.spans("predict").count("predict_step") == 4


@pytest.mark.checklist("B3")
def test_jax_is_recorded_without_torch(tmp_path: Path) -> None:
    """The same stages, steps and spans on another backend; a training goes on counting, and epochs log their loss."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [str(jax_python()), "-m", "tests.support.keras_jax", str(tmp_path)]
    done = run_to_end(command, timeout=110, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["backend"], found["torch"]) == ("jax", False)
    for stage, span in (("fit", "micro_step"), ("evaluate", "test_step"), ("predict", "predict_step")):
        stage_facts = found["first"][stage]
        assert stage_facts["steps"] == [[2, 3, 4]] and stage_facts["complete"]
        assert stage_facts["spans"].count(span) == 3
    assert list(found["first"]) == ["fit", "evaluate", "predict"]
    assert found["second"]["fit"]["steps"] == [[14, 15, 16, 17]]
    assert found["second"]["fit"]["counters"] == ["loss"]
