"""Options of MindSpore's profiler: types, ranges, dependencies, names, and what a device cannot give."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepscope.compat.mindspore.options.enums import DYNAMIC_METRICS, PROFILER_METRICS
from stepscope.compat.mindspore.options.options import NEED_OP_TIME, ProfilerOptions, read_options
from stepscope.compat.mindspore.sources.backends import CAPABILITIES, counters_refusal, limits, markdown
from stepscope.compat.mindspore.sources.device import DeviceTarget, detect_target
from stepscope.mindspore import (
    AicoreMetrics,
    DynamicProfilerMonitor,
    ExportType,
    Profiler,
    ProfilerActivity,
    ProfilerLevel,
    ProfilerPathErrorException,
    profile,
    tensorboard_trace_handler,
)
from tests.support.basics import ROOT, require
from tests.support.messages import check_messages, refused

BOOLEANS = [name for name, kind in ProfilerOptions.__annotations__.items() if kind == "bool"]


def read(**given: Any) -> ProfilerOptions:
    """The options, as `Profiler` reads them."""
    options: ProfilerOptions = read_options(given, "Profiler")
    return options


@pytest.mark.checklist("C1", "C3", "C7", "C10", "C12", "C15")
def test_defaults() -> None:
    """An option that is not set has the value of MindSpore's documents."""
    options = read()
    assert (options.output_path, options.op_time, options.start_profile) == ("./data", True, True)
    assert (options.sync_enable, options.timeline_limit, options.data_simplification) == (True, 500, True)
    others = ("profile_memory", "profile_communication", "parallel_strategy", "l2_cache", "with_stack", "data_process")
    assert not any(getattr(options, name) for name in others)
    assert options.requested() == ("op_time",)


@pytest.mark.checklist("D6")
@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", [1, 0, "true", None, [True]])
def test_a_bool_must_be_one(name: str, value: Any) -> None:
    """A wrong type raises, and says which option, which value and which type."""
    with refused(TypeError, name, "True or False", type(value).__name__):
        read(**{name: value})


@pytest.mark.checklist("D6", "A11")
def test_unknown_options_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An option that does not exist has no effect, and the log names the nearest that does; warnings may be errors."""
    assert read(profile_memry=True) == read()
    check_messages(caplog.records, "'profile_memry'", "'profile_memory'")


@pytest.mark.checklist("B9", "C4", "C5", "C12", "C13", "C14")
@pytest.mark.parametrize("name", NEED_OP_TIME)
def test_options_that_need_operators_are_refused_without(name: str) -> None:
    """Options that need operators are refused without them."""
    value: Any = {"aicore_metrics": 1, "timeline_limit": 100, "profile_framework": "time"}.get(name, True)
    with refused(ValueError, f"{name}=", "op_time=True"):
        read(op_time=False, **{name: value})
    assert getattr(read(op_time=True, **{name: value}), name)


@pytest.mark.checklist("C14")
def test_stacks_need_the_framework() -> None:
    """Stacks without any data of the host contradict each other; if these are not set, stacks alone will do."""
    with refused(ValueError, "with_stack=True", "profile_framework", "all", "time"):
        read(with_stack=True, profile_framework=None)
    assert read(with_stack=True).stacks and read(with_stack=True, profile_framework="time").stacks


@pytest.mark.checklist("C2", "A4")
def test_levels() -> None:
    """Each level holds what is in those before it, on every device; numbers and names mean the same."""
    recorded = [
        (options.operators, options.shapes, options.memory, options.stacks)
        for options in (read(profiler_level=level) for level in ProfilerLevel)
    ]
    assert recorded == [
        (False, False, False, False),
        (True, False, False, False),
        (True, True, True, False),
        (True, True, True, True),
    ]
    assert read(profiler_level=2) == read(profiler_level="Level2") == read(profiler_level=ProfilerLevel.Level2)
    assert read().operators and not read().shapes
    with refused(ValueError, "profiler_level", "Leve2", "ProfilerLevel", "Level2"):
        read(profiler_level="Leve2")


@pytest.mark.checklist("A3", "C8")
def test_metrics_by_name_and_number() -> None:
    """Numbers are those of each interface; the name means the same in both."""
    assert read(aicore_metrics=0).aicore_metrics is AicoreMetrics.ArithmeticUtilization
    assert read(aicore_metrics=4).aicore_metrics is AicoreMetrics.ResourceConflictRatio
    dynamic = read_options({"aicore_metrics": 4}, "x", metrics=DYNAMIC_METRICS)
    assert dynamic.aicore_metrics is AicoreMetrics.MemoryUB
    for name in ("MemoryUB", "memoryub", AicoreMetrics.MemoryUB):
        assert read(aicore_metrics=name) == read(aic_metrics=name) == read(aicore_metrics=5)
    assert AicoreMetrics("None") is AicoreMetrics.AiCoreNone and read(aicore_metrics="none") == read()
    assert set(PROFILER_METRICS) == set(DYNAMIC_METRICS) == set(range(-1, 7))
    with refused(ValueError, "aicore_metrics", "7", "-1 (AiCoreNone)", "6 (L2Cache)"):
        read(aicore_metrics=7)
    with refused(TypeError, "aicore_metrics", "True", "AicoreMetrics"):
        read(aicore_metrics=True)


@pytest.mark.checklist("A6")
def test_activities() -> None:
    """Activities are numbers, names or members; nothing stands for both."""
    both = (ProfilerActivity.CPU, ProfilerActivity.NPU)
    assert read().observed == read(activities=0).observed == read(activities=None).observed == both
    assert read().activities is None
    assert read(activities=["CPU"]).activities == read(activities=1).activities == (ProfilerActivity.CPU,)
    assert read(activities=[ProfilerActivity.NPU]).activities == read(activities=2).activities
    assert read().operators
    assert not read(activities=["NPU"]).operators
    with refused(ValueError, "activities", "CUP", "ProfilerActivity", "CPU"):
        read(activities=["CUP"])


@pytest.mark.parametrize(
    ("name", "value", "error", "facts"),
    [
        ("output_path", 7, TypeError, ["7", "int"]),
        ("output_path", "a\0b", ProfilerPathErrorException, []),
        ("timeline_limit", 0, ValueError, ["0", "1"]),
        ("timeline_limit", 1.5, TypeError, ["1.5", "float"]),
        ("profile_framework", "some", ValueError, ["some", "all", "time", "None"]),
        ("host_sys", 3, TypeError, ["HostSystem", "int"]),
        ("activities", 9, ValueError, ["9", "0, 1, 2"]),
        ("mstx_domain_include", "x", TypeError, ["x", "str"]),
    ],
)
def test_wrong_values(name: str, value: Any, error: type[Exception], facts: list[str]) -> None:
    """Each is named with its value and what it should be."""
    with refused(error, name, *facts):
        read(**{name: value})


@pytest.mark.checklist("A3", "B14", "C8", "C9", "C11", "D6")
def test_options_that_a_device_lacks_are_named() -> None:
    """The table says for each device what an option gives, and why not, in one sentence each."""
    asked = read(aicore_metrics=1, l2_cache=True, hbm_ddr=True, pcie=True, export_type=[ExportType.Db]).requested()
    for device in ("CPU", "GPU", "Ascend"):
        sentences = limits(asked, DeviceTarget(device=device))
        names = ["aicore_metrics", "l2_cache", "hbm_ddr", "pcie", "export_type"]
        # The data of a device depend on the machine.
        names = [
            name
            for name in names
            if not CAPABILITIES[name][device].supported or counters_refusal(name, DeviceTarget(device=device))
        ]
        assert names[-1] == "export_type"
        assert [text.split(" gives nothing on ")[0] for text in sentences] == names
        assert all(device in text for text in sentences)
    assert limits(("profile_communication",), DeviceTarget()) == (
        "profile_communication gives nothing without mindspore or torch, which is not imported yet",
    )
    assert limits(("profile_communication",), DeviceTarget(frameworks=("torch",))) == ()
    assert limits(("data_process",), DeviceTarget()) == (
        "data_process gives nothing without mindspore or torch, which is not imported yet; callbacks and "
        "`watch_data(loader)` record it all the same",
    )
    assert limits(("data_process",), DeviceTarget(frameworks=("mindspore",))) == ()
    assert limits(("op_time",), DeviceTarget(frameworks=("mindspore",))) == ()
    assert limits(read().requested(), DeviceTarget()) == ()
    for named in (["CPU", "NPU"], ["NPU"]):
        assert "npu gives nothing on CPU: no NPU is in use" in limits(
            read(activities=named).requested(), DeviceTarget()
        )
    for device in ("GPU", "Ascend"):
        (text,) = limits(("op_time",), DeviceTarget(device=device, frameworks=("mindspore",)))
        assert text.startswith(f"op_time on {device}: MindSpore is not waited for between steps")
        assert ("kernels on the device are missing" in text) == (device == "Ascend")
    assert "HCCL" in limits(("profile_communication",), DeviceTarget(device="Ascend"))[0]


def test_every_option_that_asks_for_something_is_in_the_table() -> None:
    """An option that nobody has a sentence for would be ignored silently."""
    everything: dict[str, Any] = {name: True for name in BOOLEANS}
    everything |= {"aicore_metrics": 1, "profile_framework": "all", "host_sys": ["cpu"], "export_type": ["db"]}
    everything |= {"activities": ["GPU", "NPU"], "sync_enable": False}
    assert set(read(**everything).requested()) == set(CAPABILITIES)


def test_the_documentation_has_the_table() -> None:
    """The table in the documentation agrees with the profilers."""
    assert markdown() in (ROOT / "docs" / "mindspore.md").read_text(encoding="utf-8")


@pytest.mark.checklist("C10", "C16")
def test_options_that_change_nothing() -> None:
    """They are accepted, and a message says that they change nothing."""
    for device in ("CPU", "GPU", "Ascend"):
        asked = read(sync_enable=False, env_enable=True).requested()
        *_, second, first = limits(asked, DeviceTarget(device=device))
        nothing = f"on {device}: sync_enable=False changes nothing: " if device != "GPU" else "without torch"
        assert first.startswith(f"sync_enable gives nothing {nothing}")
        assert "MS_PROFILER_OPTIONS is followed when stepscope.mindspore is imported" in second
    assert limits(read(sync_enable=False).requested(), DeviceTarget(device="GPU", frameworks=("torch",))) == ()
    assert limits(read(sync_enable=True).requested(), DeviceTarget()) == ()


@pytest.mark.checklist("A6", "C10")
@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({}, "cuda"),
        ({"activities": 0}, "cuda"),
        ({"activities": ["CPU", "GPU"]}, "cuda"),
        ({"activities": 1}, None),
        ({"sync_enable": False}, None),
    ],
)
def test_the_host_alone(
    options: dict[str, Any], device: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a GPU torch's engine is asked for its kernels, unless the host alone is wanted, or launches alone are to be timed."""
    torch = require("torch")
    devices: list[str | None] = []

    class Asked(torch.autograd.profiler.profile):  # type: ignore[misc, name-defined]
        """torch's engine, which records the host, as there is no GPU."""

        def __init__(self, *, use_device: str | None, **arguments: Any) -> None:
            devices.append(use_device)
            super().__init__(use_device=None, **arguments)  # pyright: ignore[reportUnknownMemberType]

    monkeypatch.setattr(torch.autograd.profiler, "profile", Asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with Profiler(output_path=tmp_path, record_shapes=True, **options) as profiler:
        torch.ones(2).tanh()
        profiler.step()
    assert devices == [device]


@pytest.mark.checklist("C8", "C9", "D6")
def test_limits_are_reported_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is silently ignored: the log says it when the profiler is made, and the profiler can be asked."""
    with caplog.at_level(logging.WARNING, "stepscope"):
        profiler = Profiler(output_path=tmp_path, start_profile=False, hbm_ddr=True)
    assert profiler.limitations == (
        "hbm_ddr gives nothing on CPU: rates of DDR are counters of memory controllers, which do not know of processes",
    )
    assert profiler.limitations[0] in caplog.text


@pytest.mark.checklist("A19", "D4")
def test_rank_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank and device come from any launcher; text that is no number is reported, and 0 is used."""
    for name in ("RANK", "RANK_ID", "LOCAL_RANK", "SLURM_PROCID", "WORLD_SIZE", "RANK_SIZE", "DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    assert (detect_target().rank, detect_target().rank_size, detect_target().device_id) == (0, 1, 0)
    for name in ("LOCAL_RANK", "RANK_ID", "SLURM_PROCID", "RANK"):
        monkeypatch.setenv(name, "3")
        assert detect_target().rank == 3, name
        monkeypatch.delenv(name)
    monkeypatch.setenv("RANK_ID", "2")
    monkeypatch.setenv("RANK_SIZE", "8")
    monkeypatch.setenv("DEVICE_ID", "5")
    found = detect_target()
    assert (found.rank, found.rank_size, found.device_id, found.notes) == (2, 8, 5, ())
    for name, text in (("RANK_ID", "two"), ("DEVICE_ID", "²")):
        monkeypatch.setenv(name, text)
    found = detect_target()
    assert (found.rank, found.device_id) == (0, 0)
    assert found.notes == ("DEVICE_ID is '²', which is no number: 0 is taken unless somebody else says",)


@pytest.mark.checklist("D4")
def test_a_device_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to make a profiler raises, before it has written anything; the message names the nearest device."""
    context: dict[str, Any] = {"mode": 0, "device_id": 3}
    framework: Any = ModuleType("mindspore")
    framework.Tensor, framework.GRAPH_MODE, framework.get_context = object, 0, context.__getitem__
    monkeypatch.setitem(sys.modules, "mindspore", framework)
    makers: list[Callable[[], object]] = [
        lambda: Profiler(output_path=tmp_path),
        lambda: profile(on_trace_ready=tensorboard_trace_handler(tmp_path)),
        lambda: DynamicProfilerMonitor(tmp_path),
    ]
    for target in ("Ascnd", "tpu"):
        context["device_target"] = target
        for make in makers:
            with refused(RuntimeError, "device_target", target, "Ascend"):
                make()
    assert list(tmp_path.iterdir()) == []
    for target, device, number in (("ascend", "Ascend", 3), ("GPU", "GPU", 3), ("CPU", "CPU", 0)):
        context["device_target"] = target
        found = detect_target()
        assert (found.device, found.device_id, found.mode) == (device, number, "graph")


@pytest.mark.checklist("D5")
def test_the_environment_may_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The argument wins, which is reported; without one the variable counts, without both the default."""
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", os.fspath(tmp_path / "environment"))
    assert Profiler(start_profile=False).options.output_path == os.fspath(tmp_path / "environment")
    assert not caplog.records
    given = Profiler(start_profile=False, output_path=tmp_path / "given")
    assert given.options.output_path == os.fspath(tmp_path / "given")
    check_messages(caplog.records, "MS_DIAGNOSTIC_DATA_PATH")
    monkeypatch.delenv("MS_DIAGNOSTIC_DATA_PATH")
    assert Profiler(start_profile=False).options.output_path == str(Path("data").absolute())
