"""`DynamicProfilerArgs`: fields, what is wrong in them, and their two formats of bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compat.mindspore.errors import ProfilerException, WireError
from stepscope.mindspore import AicoreMetrics, DynamicProfilerArgs, Profiler, ProfilerActivity, ProfilerLevel
from stepscope.runtime.errors import ControlError
from tests.support.messages import refused

DEFAULTS: dict[str, Any] = {
    "start_step": -1,
    "stop_step": -1,
    "aicore_metrics": -1,
    "profiler_level": 0,
    "analyse_mode": -1,
    "activities": 0,
    "parallel_strategy": False,
    "with_stack": False,
    "data_simplification": True,
}


@pytest.mark.checklist("A1", "A2", "A14")
def test_defaults() -> None:
    """Off for the whole training; the file's fields are MindSpore's, in its order."""
    args = DynamicProfilerArgs()
    assert args.vars == DEFAULTS
    assert list(args.vars) == list(DEFAULTS)
    assert (args.is_valid, args.analyse_mode, args.diagnostics) == (False, None, ())


@pytest.mark.checklist("A14")
def test_asking_changes_nothing() -> None:
    """The profiler's arguments are made anew each time, without start, stop, mode and validity."""
    args = DynamicProfilerArgs(3, 4, 4, 2, 1, 1, True, True, False, True)
    expected = {
        "profiler_level": ProfilerLevel.Level2,
        "aicore_metrics": AicoreMetrics.MemoryUB,
        "activities": [ProfilerActivity.CPU],
        "parallel_strategy": True,
        "with_stack": True,
        "data_simplification": False,
    }
    before = args.vars
    assert args.args == args.args == expected
    assert args.vars == before
    assert args.to_bytes() == DynamicProfilerArgs.from_bytes(args.to_bytes()).to_bytes()
    Profiler(start_profile=False, **args.args)


@pytest.mark.checklist("A3", "A4", "A5", "A6")
@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("aicore_metrics", -1, AicoreMetrics.AiCoreNone),
        ("aicore_metrics", 0, AicoreMetrics.PipeUtilization),
        ("aicore_metrics", 6, AicoreMetrics.L2Cache),
        ("aicore_metrics", "MemoryL0", AicoreMetrics.MemoryL0),
        ("profiler_level", 1, ProfilerLevel.Level1),
        ("profiler_level", "Level2", ProfilerLevel.Level2),
        ("activities", 2, [ProfilerActivity.NPU]),
        ("activities", ["CPU"], [ProfilerActivity.CPU]),
    ],
)
def test_numbers_and_names(field: str, value: Any, meant: Any) -> None:
    """Numbers are those of the file, and names mean the same everywhere."""
    args = DynamicProfilerArgs(**{field: value})
    assert args.args[field] == meant
    assert args.diagnostics == ()
    assert DynamicProfilerArgs.from_bytes(args.to_bytes()).args[field] == meant


@pytest.mark.checklist("A3", "A4", "A6")
@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("aicore_metrics", "MemoryAccess", AicoreMetrics.MemoryAccess),
        ("profiler_level", "LevelNone", ProfilerLevel.LevelNone),
        ("activities", ["GPU"], [ProfilerActivity.GPU]),
        ("activities", ["CPU", "GPU"], [ProfilerActivity.CPU, ProfilerActivity.GPU]),
    ],
)
def test_names_without_a_number(field: str, value: Any, meant: Any) -> None:
    """They stay as they are, in the fields and in a block; MindSpore's bytes cannot hold them, which raises."""
    args = DynamicProfilerArgs(**{field: value})
    assert args.args[field] == meant
    assert args.vars[field] == value
    assert args.diagnostics == ()
    assert DynamicProfilerArgs.from_block(args.to_block()).args[field] == meant
    with refused(ValueError, field, "to_block()"):
        args.to_bytes()


@pytest.mark.checklist("A3", "A4", "A5", "A6", "A12", "B17")
@pytest.mark.parametrize(
    ("field", "value", "reason", "used"),
    [
        ("aicore_metrics", 7, "6 (L2Cache)", "AiCoreNone"),
        ("aicore_metrics", "MemryL0", "did you mean 'MemoryL0'?", "AiCoreNone"),
        ("profiler_level", 9, "2 (Level2)", "Level0"),
        ("profiler_level", -2, "0 (Level0)", "Level0"),
        ("activities", 5, "must be one of 0, 1, 2", "CPU, NPU"),
        ("activities", ["CUP"], "did you mean 'CPU'?", "CPU, NPU"),
        ("activities", [], "known: CPU, GPU, NPU", "CPU, NPU"),
        ("analyse_mode", 2, "must be -1, 0 or 1", "-1"),
        ("start_step", "5", "must be 'next' or a whole number, got str", "-1"),
        ("stop_step", 6.0, "must be a whole number, got float", "-1"),
        ("with_stack", "true", "must be True or False, got str", "False"),
        ("profile_framework", 7, "must be -1, 0 or 1", "-1"),
        ("command", "extnd", "did you mean 'extend'?", "''"),
        ("run_id", [1], "must be a whole number or a str", "''"),
        ("prof_path", 3, "must be a str", "'./'"),
        ("analyse", 1, "must be True or False, got int", "None"),
    ],
)
def test_wrong_values(field: str, value: Any, reason: str, used: str) -> None:
    """The message has the field, the value, its range, and the value that is used instead."""
    (text,) = DynamicProfilerArgs(**{field: value}).diagnostics
    assert text.startswith(f"{field} must ") and f"got {type(value).__name__}: {value!r}" in text
    assert reason in text
    assert text.endswith(f"; {used} is taken")


OWN_FILE: dict[str, Any] = {
    "start_step": -1,
    "stop_step": -1,
    "aic_metrics": "AiCoreNone",
    "profiler_level": "Level0",
    "analyse_mode": -1,
    "activities": ["CPU", "NPU"],
    "export_type": ["text"],
    "profile_memory": False,
    "mstx": False,
    "parallel_strategy": False,
    "with_stack": False,
    "data_simplification": True,
    "l2_cache": False,
    "analyse": False,
    "record_shapes": False,
    "prof_path": "./",
    "mstx_domain_include": [],
    "mstx_domain_exclude": [],
    "host_sys": [],
    "sys_io": False,
    "sys_interconnection": False,
}
"""The default file of MindSpore 2.10's monitor."""


@pytest.mark.checklist("A5", "B17")
def test_the_file_of_mindspore_itself() -> None:
    """It is read as it is; `analyse` decides whether products are made, and contradictions are reported."""
    args = DynamicProfilerArgs(**OWN_FILE)
    assert (args.diagnostics, args.analyse_mode, args.prof_path) == ((), None, "./")
    for mode, meant in ((-1, "sync"), (0, "sync"), (1, "async")):
        fields: dict[str, Any] = {**OWN_FILE, "analyse": True, "analyse_mode": mode}
        made = DynamicProfilerArgs(**fields)
        assert (made.analyse_mode, made.diagnostics) == (meant, ())
    contradicting: dict[str, Any] = {**OWN_FILE, "analyse_mode": 1}
    silent = DynamicProfilerArgs(**contradicting)
    assert silent.analyse_mode is None
    assert silent.diagnostics == ("analyse is False, so analyse_mode 1 makes no products; did you mean analyse true?",)
    assert DynamicProfilerArgs(prof_path="/data").vars["prof_path"] == "/data"
    both = DynamicProfilerArgs(aicore_metrics=2, aic_metrics="L2Cache")
    assert both.args["aicore_metrics"] is AicoreMetrics.L2Cache
    assert "aic_metrics is taken" in both.diagnostics[0]


WRONG: tuple[Any, ...] = (None, 1.5, "three", {}, True, 1)


@pytest.mark.checklist("A12", "A7")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field, default in DEFAULTS.items()
        for value in WRONG
        if not (isinstance(value, int) and isinstance(value, bool) == isinstance(default, bool))
    ],
)
def test_wrong_types(field: str, value: Any) -> None:
    """One wrong field is reset alone, and named with its value; a bool is no number, and a number no bool."""
    fields: dict[str, Any] = {**DEFAULTS, "start_step": 5, field: value}
    args = DynamicProfilerArgs(**fields)
    assert args.vars == {**DEFAULTS, "start_step": 5, field: DEFAULTS[field]}
    (text,) = args.diagnostics
    assert text.startswith(f"{field} must ")
    named = {"aicore_metrics": "AiCoreNone", "profiler_level": "Level0", "activities": "CPU, NPU"}
    assert text.endswith(f"; {named.get(field, repr(DEFAULTS[field]))} is taken")


@pytest.mark.checklist("A11")
def test_unknown_fields() -> None:
    """They have no effect, and the nearest known one is named."""
    args = DynamicProfilerArgs(start_stepp=3, with_stack=True)
    assert args.vars == DEFAULTS | {"with_stack": True}
    assert args.diagnostics == ("there is no field 'start_stepp'; did you mean 'start_step'?",)
    assert "no field 'self'" in DynamicProfilerArgs.from_json(b'{"self": 1}').diagnostics[0]


def test_repr_is_the_call() -> None:
    """With every field that the file has."""
    args = DynamicProfilerArgs(3, 5, with_stack=True, steps=2)
    assert eval(repr(args), {"DynamicProfilerArgs": DynamicProfilerArgs}) == args


@pytest.mark.checklist("B17")
def test_further_fields() -> None:
    """The guide's keys that the class has not, those of later versions, and every option of `Profiler`."""
    guide: dict[str, Any] = {
        **DEFAULTS,
        "profiler_level": -1,
        "profile_framework": -1,
        "profile_communication": True,
        "with_stack": True,
    }
    args = DynamicProfilerArgs(**guide)
    assert "profiler_level" not in args.args
    assert "profile_framework" not in args.args
    assert args.args["profile_communication"] is True
    assert args.diagnostics == ()
    Profiler(start_profile=False, **args.args)
    assert DynamicProfilerArgs(profile_framework=0).args["profile_framework"] == "all"
    assert DynamicProfilerArgs(profile_framework=1).args["profile_framework"] == "time"
    later = DynamicProfilerArgs(aic_metrics="PipeUtilization", profile_memory=True, prof_path="./", analyse=False)
    assert later.args["aicore_metrics"] is AicoreMetrics.PipeUtilization
    assert later.args["profile_memory"] is True
    assert later.diagnostics == ()
    wrong = DynamicProfilerArgs(profile_memory="yes")
    assert "profile_memory" not in wrong.args
    assert "profile_memory must be True or False, got str: 'yes'; the default is taken" in wrong.diagnostics[0]


@pytest.mark.checklist("A13")
def test_mindspores_format() -> None:
    """28 bytes, field by field; another number of them raises as MindSpore does."""
    args = DynamicProfilerArgs(1, 2, 3, 1, 0, 2, True, False, True, True)
    assert DynamicProfilerArgs.SIZE == 28
    assert args.to_bytes() == struct.pack("iiiiii????", 1, 2, 3, 1, 0, 2, True, False, True, True)
    assert DynamicProfilerArgs.from_bytes(args.to_bytes()) == args
    for cut in (b"", args.to_bytes()[:-1], args.to_bytes() + b"\0"):
        with pytest.raises(ValueError, match="Number of variables does not match format string"):
            DynamicProfilerArgs.from_bytes(cut)
    assert "must be a whole number <= 2147483647" in DynamicProfilerArgs(start_step=1 << 31).diagnostics[0]


@pytest.mark.checklist("A10", "A13")
def test_our_format() -> None:
    """All fields, validity included, in a block that says its version."""
    args = DynamicProfilerArgs(
        start_step=1, stop_step=2, is_valid=True, run_id="7", command="extend", profile_memory=True
    )
    again = DynamicProfilerArgs.from_block(args.to_block() + b"what lies behind")
    assert again == args
    assert (again.run_id, again.command, again.is_valid) == ("7", "extend", True)
    assert again != DynamicProfilerArgs()
    block = bytearray(args.to_block())
    block[4] = 9
    with refused(WireError, "version 9", "version 1"):
        DynamicProfilerArgs.from_block(bytes(block))
    assert issubclass(WireError, ProfilerException) and issubclass(WireError, ValueError)


@pytest.mark.checklist("A13")
@given(st.data())
def test_torn_blocks_are_seen(data: st.DataObject) -> None:
    """A block that is part one configuration and part another, or cut anywhere, is never accepted."""
    numbers = st.integers(-(1 << 31), (1 << 31) - 1)
    one, other = (DynamicProfilerArgs(data.draw(numbers), data.draw(numbers)).to_block() for _ in range(2))
    at = data.draw(st.integers(0, len(one)))
    torn = one[:at] + other[at:]
    if torn not in (one, other) and not torn.startswith((one, other)):
        with pytest.raises(WireError):
            DynamicProfilerArgs.from_block(torn)
    with pytest.raises(WireError):
        DynamicProfilerArgs.from_block(one[: min(at, len(one) - 1)])


@given(st.binary(max_size=80))
def test_any_bytes(block: bytes) -> None:
    """They are refused by an error of their own, never by another one."""
    with pytest.raises(WireError):
        DynamicProfilerArgs.from_block(block)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", []),
        (b'{"start_step": 1', ["line 1, column"]),
        (b'{\n  "start_step": 1,\n  "stop_step": }', ["line 3, column"]),
        (b"[1, 2]", ["line 1, column"]),
        (b"null", ["line 1, column"]),
        (b'{"a": 1,\n"b": "\xff"}', ["line 2", "UTF-8"]),
    ],
)
@pytest.mark.checklist("A24", "A25", "F1")
def test_text_that_is_no_configuration_is_refused(content: bytes, facts: list[str]) -> None:
    """Text that is no JSON object is refused, with the place."""
    with refused(ControlError, *facts):
        DynamicProfilerArgs.from_json(content)


@pytest.mark.checklist("A10", "A24")
def test_a_file(tmp_path: Path) -> None:
    """Its values are valid whatever its `is_valid` is; a number that is too large is an error of its field alone."""
    text = json.dumps({"start_step": 10, "stop_step": 10, "is_valid": False}, indent=4)
    args = DynamicProfilerArgs.from_json(b"\xef\xbb\xbf" + text.encode())
    assert args.is_valid
    assert (args.start_step, args.stop_step) == (10, 10)
    for number in (b"1e400", b"9" * 5000):
        (text,) = DynamicProfilerArgs.from_json(b'{"start_step": %s}' % number).diagnostics
        assert text == "start_step must be 'next' or a whole number, got float: inf; -1 is taken"


def test_which_steps_and_ranks() -> None:
    """The next steps, so many of them, on some ranks; a wrong value is reported, and asks for nothing."""
    args = DynamicProfilerArgs("next", steps=3, ranks="0,3-4")
    assert (args.start_step, args.steps, args.ranks, args.diagnostics) == ("next", 3, (0, 3, 4), ())
    assert DynamicProfilerArgs.from_block(args.to_block()) == args
    assert DynamicProfilerArgs(2, 3, ranks=[1]) != DynamicProfilerArgs(2, 3)
    with refused(ValueError, "start_step", "next", "to_block()"):
        args.to_bytes()
    make: Any = DynamicProfilerArgs
    wrong: list[tuple[str, Any]] = [("start_step", "nxt"), ("steps", -1), ("steps", "3")]
    for name, value in [*wrong, ("ranks", "a"), ("ranks", []), ("ranks", [-1])]:
        found = make(**{"start_step": 2, "stop_step": 3, name: value})
        assert [text.partition(" ")[0] for text in found.diagnostics] == [name]
        assert found.ranks == (() if name == "ranks" else None)
