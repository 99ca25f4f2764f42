"""Messages about settings that cannot be name the field, the value and the valid values: in programs and in files."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
import stepscope.torch as torch_replacement
from stepscope import mxnet
from stepscope.collector.settings import CollectorSettings
from stepscope.compat.frameworks.loop_settings import LoopSettings
from stepscope.compat.mxnet.settings import MXNetSettings
from stepscope.runtime.control.entry_points.control_file import ControlFile
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.control.entry_points.environment import EnvironmentOptions
from stepscope.runtime.errors import ControlError
from stepscope.runtime.settings.checked import Checked
from tests.support.messages import refused

STRANGE = object()
"""A value that fits no annotation."""


def kinds() -> Iterator[type[Checked]]:
    """Every kind of settings that there is."""
    for group in (sc, sc.backends, sc.control, sc.exporters, sc.triggers):
        for name in group.__all__:
            getattr(group, name)  # imports what defines it
    waiting: list[type[Checked]] = [Checked]
    while waiting:
        found = [each for each in waiting.pop().__subclasses__() if each.__module__.startswith("stepscope.")]
        waiting += found
        yield from found


SETTINGS = sorted(kinds(), key=lambda kind: kind.__name__)
FIELDS = [(kind, name) for kind in SETTINGS for name in kind.__struct_fields__]
CHECKED = [
    (kind, field.name)
    for kind in SETTINGS
    for field in msgspec.structs.fields(kind)
    if field.name not in kind.__unchecked__ and field.type is not Any
]
"""Fields that do not hold objects of the program; settings check those themselves."""


def keywords(kind: type[Checked], **changed: Any) -> dict[str, Any]:
    """Keywords that a kind of settings must have, and others."""
    needed: dict[type[Checked], dict[str, Any]] = {
        sc.FlightRecorder: {"steps": 3},
        sc.control.WindowRequest: {"steps": 3},
        CollectorSettings: {"directory": Path("streams")},
    }
    return {**needed.get(kind, {}), **changed}


def test_a_keyword_that_is_misspelt() -> None:
    """The nearest is named, for each field of all settings."""
    for kind, name in FIELDS:
        wrong = f"{name}_"
        with pytest.raises(TypeError) as caught:
            kind(**keywords(kind, **{wrong: 1}))
        assert str(caught.value) == f"{kind.__name__}: unknown field {wrong!r}; did you mean {name!r}?"


def test_a_name_that_is_misspelt_in_a_file() -> None:
    """The same in JSON, with its place."""
    for kind, name in FIELDS:
        with pytest.raises(ControlError) as caught:
            decode_json(b'{\n  "%s_": 1}' % name.encode(), kind)
        assert str(caught.value) == f"line 2, column 3: unknown field '{name}_'; did you mean {name!r}?", kind


def test_a_value_of_a_strange_type() -> None:
    """Field and value are named, for each field of all settings whose type is known."""
    for kind, name in CHECKED:
        with pytest.raises((TypeError, ValueError)) as caught:
            kind(**keywords(kind, **{name: STRANGE}))
        assert f"{name} must be " in str(caught.value) and "got object: <object object at" in str(caught.value), kind


def wrong(**arguments: Any) -> dict[str, Any]:
    """Arguments whose types do not fit."""
    return arguments


@pytest.mark.parametrize(
    ("call", "begin"),
    [
        (
            partial(sc.trace, **wrong(exporters=["a.pftrace"])),
            "exporters must have objects, got str: 'a.pftrace'; write exporters=[stepscope.exporters.Perfetto",
        ),
        (partial(sc.trace, **wrong(fixed=5)), "fixed must be a list of names, got int: 5; write fixed="),
        (partial(sc.trace, **wrong(fixed=[5])), "fixed must have a str each, got int: 5"),
        (partial(sc.trace, **wrong(start=math.nan)), "start must be True or False, got float: nan"),
        (partial(sc.trace, **wrong(backends=b"x")), "backends must be a list, got bytes: b'x'; write backends="),
        (
            partial(torch_replacement.profile, **wrong(activities=5)),
            "activities must be a list, got int: 5; write activities=",
        ),
        (lambda: mxnet.set_config(backends=5), "set_config(): backends must be a list, got int: 5; write backends="),
        (lambda: mxnet.set_config(filename=None), "set_config(): filename must be a str, got NoneType: None"),
        (
            lambda: sc.Options(memory_bytes=10**400),
            "Options.memory_bytes must be a number of at most 64 bits, got int: 1",
        ),
    ],
)
def test_arguments_of_a_wrong_type(call: Any, begin: str) -> None:
    """Every function refuses them in the same form: the name, what it must be, the value, and what to write."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert str(caught.value).startswith(begin)


def test_required_settings() -> None:
    """It is named, with the settings that it belongs to."""
    with refused(TypeError, "FlightRecorder", "steps"):
        sc.FlightRecorder()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


PROGRAMS: list[tuple[type[Checked], dict[str, Any], str]] = [
    (sc.Options, {"ring_slots": 7}, "Options.ring_slots must be a whole number >= 64, got int: 7"),
    (sc.Options, {"linger": "3.5"}, "Options.linger must be a number, got str: '3.5'"),
    (sc.Options, {"drain_interval": 0}, "Options.drain_interval must be a number > 0.0, got int: 0"),
    (sc.Options, {"overflow": "drop_old"}, "Options.overflow must be 'block', 'drop_newest' or 'drop_oldest', got str: 'drop_old'; did you mean 'drop_oldest'?"),
    (sc.Options, {"overflow": "x"}, "Options.overflow must be 'block', 'drop_newest' or 'drop_oldest', got str: 'x'"),
    (sc.Options, {"session_dir": 3}, "Options.session_dir must be a str or None, got int: 3"),
    (sc.Control, {"poll": True}, "Control.poll must be a number, got bool: True"),
    (sc.Control, {"job": "a/b c"}, "Control.job must be a str matching regex '^[A-Za-z0-9._@:+-]*$', got str: 'a/b c'"),
    (sc.control.WindowRequest, {"start_step": "nxt"}, "WindowRequest.start_step must be 'next' or a whole number, got str: 'nxt'; did you mean 'next'?"),
    (sc.control.WindowRequest, {"steps": 3, "ranks": 2}, "WindowRequest.ranks must be a list or None, got int: 2"),
    (sc.FlightRecorder, {"steps": 0}, "FlightRecorder.steps must be a whole number >= 1, got int: 0"),
    (sc.triggers.SlowStep, {"quantile": 1}, "SlowStep.quantile must be a number < 1.0, got int: 1"),
    (sc.exporters.OtlpOptions, {"compression": "zstd"}, "OtlpOptions.compression must be 'gzip', 'none' or None, got str: 'zstd'"),
    (sc.exporters.OtlpOptions, {"resource": {"a": 1, "b": [2]}}, "OtlpOptions.resource[...] must be True, False, a whole number, a number or a str, got dict: {'a': 1, 'b': [2]}"),
    (CollectorSettings, {"directory": "data"}, "CollectorSettings.directory must be a Path, got str: 'data'"),
    (MXNetSettings, {"profile_process": "sever"}, "profile_process must be 'server' or 'worker', got str: 'sever'; did you mean 'server'?"),
    (LoopSettings, {"unit": "epochs"}, "unit must be 'epoch' or 'step', got str: 'epochs'; did you mean 'epoch'?"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wrong", "message"), PROGRAMS)
def test_wrong_values_in_programs(kind: type[Checked], wrong: dict[str, Any], message: str) -> None:
    """Field, value, and what it should be."""
    with pytest.raises(ValueError) as caught:
        kind(**wrong)
    assert str(caught.value) == message


FILES: list[tuple[str, str]] = [
    ("[]", "must be a mapping, got list: []"),
    ('{"control": {"pol": 1}}', "control: unknown field 'pol'; did you mean 'poll'?"),
    ('{"window": {"steps": 2, "ranks": [1, -1]}}', "window.ranks[1] must be a whole number >= 0, got int: -1"),
    ('{"window": {"start_step": 3}}', "window is {'start_step': 3}: WindowRequest takes one of steps, stop_step and seconds, got none of them"),
    ('{"window": []}', "window must be a mapping or None, got list: []"),
    ('{"schedule": {}}', "schedule lacks 'active'"),
    ('{"options": {"lingr": 1}}', "options: unknown field 'lingr'; did you mean 'linger'?"),
    ('{"options": {"overflow": "blok"}}', "options.overflow must be 'block', 'drop_newest' or 'drop_oldest', got str: 'blok'; did you mean 'block'?"),
    ('{"overhead_budget": 1}', "overhead_budget must be a number < 1.0, got int: 1"),
    ('{"overhead_budget": 1e400}', "overhead_budget must be a number < 1.0, got float: inf"),
    ('{"metadata": {"x": 1e400}}', "metadata[...] must be a number of at most 64 bits, got dict: {'x': inf}"),
    ('{"a` - at `$.control.b": 1}', "control.b: unknown field 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FILES)
def test_wrong_values_in_files(text: str, message: str) -> None:
    """The way to the field, whatever it is inside of, and the value."""
    with pytest.raises(ControlError) as caught:
        decode_json(text.encode(), EnvironmentOptions)
    assert str(caught.value).partition(": ")[2] == message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'{"steps": 2, "start_step": 1,\n\n  "ranks": [1, "a"]}', (3, 3)),
        (b'{"st\\u0065ps": 0}', (1, 1)),
        (b'{"steps": 0, "steps": 2}', (1, 2)),
        (b'{"steps": 0, "run_id": "\xff"}', (1, 2)),
    ],
)
def test_the_place_in_a_file(text: bytes, place: tuple[int, int]) -> None:
    """Line and column of the name; of the begin, if the name is not found as it is."""
    with pytest.raises(ControlError) as caught:
        decode_json(text, ControlFile)
    assert (caught.value.line, caught.value.column) == place
    assert str(caught.value).startswith(f"line {place[0]}, column {place[1]}: ")


def test_values_of_any_size() -> None:
    """Long values are shortened in messages, and nothing is searched for ever."""
    with pytest.raises(ValueError) as caught:
        sc.Control(job="/" * 10_000_000)
    assert len(str(caught.value)) < 300
    with pytest.raises(ControlError) as raised:
        decode_json(b'{"window": {"steps": [%s]}}' % b",".join([b"1"] * 100_000), EnvironmentOptions)
    assert len(str(raised.value)) < 300
    with refused(ValueError, "Options.linger", "int", "ValueError", snapshot=False):  # as msgspec says it
        sc.Options(linger=10**5000)
    with refused(ValueError, "Options.session_dir", "int"):
        sc.Options(session_dir=10**5000)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with refused(ValueError, "Options.ring_slots", "int", "16777216"):
        sc.Options(ring_slots=10**5000)


def test_a_value_that_does_not_show_itself() -> None:
    """An object of the program whose `repr` raises is named by its type."""

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    with refused(ValueError, "Options.linger", "RuntimeError", "Silent"):
        sc.Options(linger=Silent())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


NAMES = st.sampled_from(
    ["window", "control", "options", "schedule", "steps", "ranks", "poll", "linger", "shed", "active"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(1 << 62, 1 << 80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_followed_or_refused(value: Any) -> None:
    """With a place, and never with another error; the same values of a program likewise."""
    text = (
        json.dumps(value).replace("NaN", "1e999").replace("-Infinity", "-1e999").replace("Infinity", "1e999").encode()
    )
    try:
        decode_json(text, EnvironmentOptions)
    except ControlError as error:
        assert error.line >= 1 and str(error).startswith(f"line {error.line}, column {error.column}: ")
    for name in ("poll", "path", "job", "create"):
        with contextlib.suppress(ValueError):
            sc.Control(**{name: value})


def test_names_that_are_no_fields_for_a_reason() -> None:
    """A program or a file that uses one of them gets the reason."""

    class Gear(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
        __fixed__ = {"wheels": "they are mounted in the factory"}
        teeth: int = 12

    with refused(TypeError, "Gear", "wheels", "factory"):
        Gear(wheels=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with refused(ControlError, "wheels", "factory"):
        decode_json(b'{"wheels": 3}', Gear)
