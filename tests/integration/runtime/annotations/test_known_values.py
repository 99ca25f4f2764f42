"""Values of well-known types as arguments and metadata: their text is recorded, and no code of the program runs."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import signal
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.runtime import _core
from stepscope.runtime.events import json_values
from stepscope.runtime.events.record import Flag
from tests.support.basics import require
from tests.support.recording import recording


class Colour(enum.Enum):
    """A choice."""

    RED = "red"


class Level(enum.Enum):
    """A choice whose value says nothing."""

    HIGH = 3


class Rights(enum.Flag):
    """Several choices."""

    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Config:
    """Settings, as people log them."""

    rate: float = 0.1
    where: pathlib.PurePath = pathlib.PurePosixPath("a/b")
    colour: Colour = Colour.RED
    inner: Any = None


class Zone(datetime.tzinfo):
    """Code of the program."""

    def utcoffset(self, moment: datetime.datetime | None) -> datetime.timedelta:
        """Must not be called."""
        raise AssertionError("code of the program ran")

    dst = utcoffset

    def tzname(self, moment: datetime.datetime | None) -> str:
        """Must not be called."""
        raise AssertionError("code of the program ran")


class Named(uuid.UUID):
    """Has a text of its own."""

    def __str__(self) -> str:
        raise AssertionError("code of the program ran")


class Hiding:
    """Answers for every attribute."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("code of the program ran")


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
VALUES: list[tuple[Any, Any]] = [
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (pathlib.Path("runs/exp 1"), "runs/exp 1"),
    (pathlib.PureWindowsPath("a/b"), "a\\b"),
    (MOMENT, "2026-01-02 03:04:05.000006"),
    (MOMENT.replace(tzinfo=datetime.UTC), "2026-01-02 03:04:05.000006+00:00"),
    (MOMENT.replace(tzinfo=zoneinfo.ZoneInfo("UTC")), "2026-01-02 03:04:05.000006+00:00"),
    (MOMENT.date(), "2026-01-02"),
    (MOMENT.time(), "03:04:05.000006"),
    (datetime.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
    (decimal.Decimal("1.50"), "1.50"),
    (fractions.Fraction(1, 3), "1/3"),
    (1j, "1j"),
    (Colour.RED, "red"),
    (Level.HIGH, "Level.HIGH"),
    (Rights.READ | Rights.WRITE, "Rights.READ|WRITE"),
    (np.datetime64("2026-01-02"), "2026-01-02"),
    (np.dtype("f4"), "float32"),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (Config(), {"rate": 0.1, "where": "a/b", "colour": "red", "inner": None}),
    ([uuid.UUID(int=1), {"p": pathlib.PurePosixPath("x")}], ["00000000-0000-0000-0000-000000000001", {"p": "x"}]),
]
OPAQUE: list[Any] = [lambda: MOMENT.replace(tzinfo=Zone()), lambda: Named(int=1), object]


def as_argument(value: Any) -> Any:
    """The value that an argument of a span is recorded as."""
    with recording() as log, sc.span("x", value=value):
        pass
    return log.spans[0].arguments["value"]


@pytest.mark.parametrize(("value", "wanted"), VALUES, ids=lambda value: ascii(value)[:30])
def test_text_of_well_known_types(value: Any, wanted: Any) -> None:
    """In arguments, in metadata, and in files of JSON."""
    assert as_argument(value) == wanted
    assert json_values.plain(value) == wanted


@pytest.mark.parametrize("make", OPAQUE, ids=range(len(OPAQUE)))
def test_other_types_are_named(make: Any) -> None:
    """Subclasses too: their text may be slow, or raise; and an object is not asked for attributes."""
    value = make()
    name = type(value).__name__
    assert as_argument(value).strip("<>").rpartition(".")[2] == name
    assert json_values.plain(value) == f"<{name}>"
    assert str(as_argument(Hiding())).endswith("Hiding>")


def test_torch_types() -> None:
    """Data types and devices, but no tensor: its text waits for a device."""
    torch: Any = require("torch")
    wanted = [(torch.float32, "torch.float32"), (torch.device("cpu"), "cpu"), (torch.Size([1, 2]), [1, 2]),
              (torch.strided, "torch.strided"), (torch.channels_last, "torch.channels_last")]  # fmt: skip
    for value, text in wanted:
        assert as_argument(value) == json_values.plain(value) == text
    assert as_argument(torch.zeros(2)) == "<Tensor>"


def test_circles_end() -> None:
    """A dataclass that holds itself."""
    circle = Config()
    circle.inner = circle
    assert as_argument(circle) == "<dict of 4>"
    assert json.dumps(json_values.plain(circle)).count("a/b") > 3


def test_a_signal_while_a_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of its handler reaches the program, and the span is recorded."""

    class Stop(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, handler)
    shown = __import__("stepscope.runtime.events.json_values", fromlist=["shown"]).shown

    def interrupted(value: object) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return shown(value)

    try:
        _core.set_known_values(interrupted)
        with recording() as log:
            with pytest.raises(Stop), sc.span("x", where=Path("a")):
                pass
            with pytest.raises(Stop):
                sc.instant("y", where=Path("a"))
    finally:
        _core.set_known_values(shown)
        signal.signal(signal.SIGUSR1, before)
    assert [row.name for row in log.rows] == ["x", "y"]


def test_the_error_of_a_counter_names_its_value(tmp_path: Path) -> None:
    """The value is in the trace, and the report counts it in words."""
    path = tmp_path / "t.json"
    with sc.trace(output_dir=tmp_path / "run", exporters=[sc.ChromeTraceExporter(path)]) as profiler:
        sc.counter("loss", "0.3")  # type: ignore[arg-type]
        sc.counter("loss", None)  # type: ignore[arg-type]
        sc.counter("loss", 0.25)
        sc.counter("loss", float("nan"))
        profiler.step()
    found = [event for event in json.loads(path.read_text()) if event["name"].startswith("loss")]
    assert [(event["name"], event.get("args")) for event in found] == [
        ("loss is no number", {"given": "0.3"}),
        ("loss is no number", {"given": None}),
        ("loss", {"value": 0.25}),
        ("loss is NaN", None),
    ]
    assert "2 counter values that are no number" in str(profiler.report())
    assert Flag.NO_NUMBER
