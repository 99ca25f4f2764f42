"""Misspelt arguments of drop-in replacements: one form of message, with the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope.mindspore as ms
import stepscope.mxnet as mx
import stepscope.torch as st
from stepscope import nvtx
from tests.support.messages import check_messages, refused

CALLS: list[tuple[Callable[..., Any], str, str]] = [
    (st.profile, "record_shape", "record_shapes"),
    (st.schedule, "activ", "active"),
    (st.tensorboard_trace_handler, "dirname", "dir_name"),
    (ms.profile, "record_shape", "record_shapes"),
    (ms._ExperimentalConfig, "l2_cach", "l2_cache"),  # pyright: ignore[reportPrivateUsage]
    (ms.schedule, "activ", "active"),
    (ms.tensorboard_trace_handler, "dirname", "dir_name"),
    (ms.Profiler.offline_analyse, "prety", "pretty"),
    (mx.dumps, "sortby", "sort_by"),
    (mx.dump, "finish", "finished"),
    (nvtx.annotate, "colour", "color"),
    (nvtx.mark, "mesage", "message"),
]


@pytest.mark.parametrize(("function", "wrong", "right"), CALLS)
def test_the_nearest_name(function: Callable[..., Any], wrong: str, right: str) -> None:
    """The message has it, as those of `stepscope.trace` do."""
    with refused(TypeError, f"() has no argument {wrong!r}; did you mean {right!r}?"):
        function(**{wrong: None})


@pytest.mark.parametrize(("wrong", "right"), [("outputpath", "output_path"), ("granularty", "granularity")])
def test_the_monitor_goes_on(wrong: str, right: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As MindSpore's does; the log has the nearest name."""
    make: Any = ms.DynamicProfilerMonitor
    make(tmp_path, **{wrong: "x"}).close()
    check_messages(caplog.records, repr(wrong), f"did you mean {right!r}?")
