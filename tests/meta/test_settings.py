"""Settings are explained where people look: in `help()`, and on a page that is made of the same texts."""

from __future__ import annotations

import pydoc
import re
import sys
import textwrap
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

import stepscope
from docs import settings
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.documented import Documented, fields_of
from tests.support.launch import run_to_end
from tests.support.messages import refused

PUBLIC: dict[str, Any] = {name: getattr(stepscope, name) for name in stepscope.__all__}
STRUCTS: list[type[msgspec.Struct]] = [
    value for value in PUBLIC.values() if isinstance(value, type) and issubclass(value, msgspec.Struct)
]


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_help_explains_every_field(kind: type[msgspec.Struct]) -> None:
    """With its type, its default and a text; so do settings, and what a program gets back."""
    assert issubclass(kind, Documented)
    shown = pydoc.plain(pydoc.render_doc(kind))
    for field in fields_of(kind):
        assert field.text, f"{kind.__name__}.{field.name} has no text"
        assert f"{field.name}: {field.type}" in shown
        assert all(line in shown for line in field.text.splitlines())


def test_fields_are_reported_with_type_default_and_range() -> None:
    """As a person would write them, whatever the annotations are made of."""
    fields = {field.name: (field.type, field.default, field.range) for field in fields_of(stepscope.Options)}
    assert fields["memory_bytes"] == ("int", "256 << 20", "at least 1 << 24")
    assert fields["ring_bytes"] == ("int | None", "None", "at least 1 << 12")
    assert fields["linger"] == ("float", "5.0", "at least 0")
    assert fields["session_dir"] == ("str | None", "None", "")
    steps, *_ = fields_of(stepscope.FlightRecorder)
    assert (steps.default, steps.range) == (None, "1 to 1 << 16")
    limit = fields_of(stepscope.triggers.MemoryHigh)[1]
    assert (limit.type, limit.range) == ("int | None", "above 0")


def test_ranges_are_those_that_are_checked() -> None:
    """The documented minimum is accepted, and one less is refused."""
    assert stepscope.Options(ring_bytes=1 << 12).ring_bytes == 1 << 12
    with refused(ValueError, "Options.ring_bytes", "4095", "4096"):
        stepscope.Options(ring_bytes=(1 << 12) - 1)


def test_without_sources_the_fields_are_reported() -> None:
    """A struct that has none, as one written at a prompt: names, types and defaults are known all the same."""
    scope: dict[str, Any] = {"__name__": "stepscope.nowhere", "Documented": Documented}
    source = 'class Made(Documented):\n    """What it is."""\n    given: int\n    size: int = 3\n'
    module = types.ModuleType("stepscope.nowhere")
    vars(module).update(scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, "<prompt>", "exec"), vars(module))
        made: Any = vars(module)["Made"]
        assert made.__doc__ == "What it is.\n\nAttributes:\n    given: int\n    size: int = 3"


def test_no_source_is_read_on_import() -> None:
    """Only whoever asks for help pays for it."""
    program = """
        import linecache

        import stepscope

        assert not [name for name in linecache.cache if name.endswith("options.py")]
        assert "Attributes:" in stepscope.Options.__doc__
        assert [name for name in linecache.cache if name.endswith("options.py")]
    """
    run_to_end([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=True)


def test_the_page_is_current() -> None:
    """`make docs` writes it anew."""
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page()


def test_the_page_has_every_setting() -> None:
    """Each public settings struct, and each class or function that takes arguments and is no part of the API of spans."""
    listed = {subject for chapter in settings.CHAPTERS.values() for subject in chapter}
    expected = {kind for kind in STRUCTS if issubclass(kind, Checked)}
    expected |= {value for name, value in PUBLIC.items() if name.endswith(("Exporter", "_handler")) and callable(value)}
    assert expected - {PUBLIC.get("Exporter")} <= listed
    for subject in listed:
        assert all(field.text for field in settings.settings_of(subject)), subject


LOCAL = "ws://127.0.0.1:1"
WRONG: Any = {}
TEXT: Any = "a=b"
NUMBER: Any = 5


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (
            partial(stepscope.trace, options=WRONG),
            ["options", "stepscope.Options", "options=stepscope.Options(...)"],
        ),
        (
            partial(stepscope.CollectorExporter, LOCAL, settings=WRONG),
            ["settings", "stepscope.exporters.LinkSettings"],
        ),
        (
            partial(stepscope.exporters.NatsExporter, "nats://127.0.0.1:1", access=WRONG),
            ["access", "stepscope.exporters.NatsAccess"],
        ),
        (
            partial(stepscope.exporters.NatsExporter, "nats://127.0.0.1:1", limits=WRONG),
            ["limits", "stepscope.exporters.NatsLimits"],
        ),
        (partial(stepscope.exporters.OtlpExporter, options=WRONG), ["options", "stepscope.exporters.OtlpOptions"]),
        (partial(stepscope.exporters.OtlpExporter, headers=TEXT), ["headers"]),
        (partial(stepscope.CollectorExporter, LOCAL, token=NUMBER), ["token", "Path"]),
    ],
)
def test_values_that_are_no_settings(make: Callable[[], object], facts: list[str]) -> None:
    """The call that gets it names it, and the right form."""
    with refused(TypeError, *facts):
        make()


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: stepscope.CollectorExporter("ws://other:1", token="t"), r"settings=(LinkSettings\(insecure=True\))"),
        (lambda: stepscope.exporters.NatsExporter("nats://other:1"), r"access=(NatsAccess\(insecure=True\))"),
    ],
)
def test_the_advice_can_be_taken(make: Callable[[], object], advice: str) -> None:
    """The code that a message advises exists."""
    with refused(ValueError) as error:
        make()
    written = re.search(advice, str(error.value))
    assert written is not None and eval(f"stepscope.exporters.{written[1]}").insecure
