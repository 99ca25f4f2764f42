"""The level of detail of a requested window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

import msgspec

from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value

_REMEDIES = {
    "stacks": "add PythonStacksBackend() or TorchBackend(mode='kineto')",
    "shapes": "add TorchBackend(mode='kineto')",
    "memory": "add ProcessMemoryBackend() or TorchBackend(mode='kineto')",
    "flops": "add TorchBackend(mode='kineto')",
    "modules": "add TorchBackend(mode='kineto')",
}


class WindowDetail(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Level of detail of a window. Fields that are not set, and everything after the window, are as set by the program.

    An overhead budget has priority: no window contains events that it excludes.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    __fixed__: ClassVar[dict[str, str]] = {
        "activities": "torch gets its activities when the backend is made",
        "backends": "backends are opened when the profiler starts",
        "exporters": "exporters are opened when the profiler starts",
        "interval": "a backend takes its interval when it is made",
        "mode": "a backend chooses how it records when it is opened",
        "options": "rings are made by the first profiler of the process",
        "overhead_budget": "there is one for the run, and it lowers the detail of windows as well",
    }
    """Names that users may expect here, with the reason why they are no fields."""

    every: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 1
    """Events of the program, and live operators, are recorded only in steps whose number is a multiple of this. 0: in none, so that
    the window has only step marks, and events of other backends."""
    shortest_us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Live operators of less time, in µs, are not recorded."""
    operators: bool | None = None
    """Operators of frameworks."""
    stacks: bool | None = None
    """Stacks of Python functions."""
    shapes: bool | None = None
    """Shapes of operators' inputs."""
    memory: bool | None = None
    """Memory: allocations, or memory of the process, depending on the backends."""
    flops: bool | None = None
    """Floating-point operations of operators, as estimated by torch."""
    modules: bool | None = None
    """The hierarchy of modules, as torch has it."""

    @property
    def chosen(self) -> tuple[tuple[str, bool], ...]:
        """Switches for backends, with their values."""
        switches = ((name, getattr(self, name)) for name in SWITCHES)
        return tuple((name, on) for name, on in switches if on is not None)

    def within(self, level: Detail) -> Detail:
        """Returns the detail of such a window at a level of the overhead budget."""
        return Detail(
            self.text() if level == FULL else f"{level.name}, {self.text()}",
            operators=level.operators and self.operators is not False,
            every=level.every * self.every,
            chosen=self.chosen,
            shortest=round(self.shortest_us * 1000),
            requested=level == FULL,
        )

    def refusal(self, backends: Iterable[Any]) -> str:
        """Returns why the backends of a profiler do not support this; empty if they do."""
        having = (backend for backend in backends if hasattr(backend, "can_choose"))
        can_choose: list[Callable[[str, bool], str | None]] = [backend.can_choose for backend in having]
        if self.shortest_us:
            refused = next((why for each in can_choose if (why := each(SHORTEST, True))), "")
            if refused:
                return f"detail {SHORTEST}={self.shortest_us:g}: {refused}"
        for what, on in self.chosen:
            answers = [answer for each in can_choose if (answer := each(what, on)) is not None]
            refused = next(filter(None, answers), "")
            if on and what in _REMEDIES and (not answers or all(answers)):
                return f"detail {what}: {refused or f'no backend of this profiler records that; {_REMEDIES[what]}'}"
            if not on and refused:
                return f"detail {what}=off: {refused}"
        return ""

    def text(self) -> str:
        """Returns the detail as text that `detail_from` parses: `stacks,operators=off`; empty if nothing is set."""
        parts = [name if on else f"{name}=off" for name, on in self.chosen]
        if self.shortest_us:
            parts.append(f"{SHORTEST}={self.shortest_us:.12g}")
        return ",".join([*parts, *([f"every={self.every}"] if self.every != 1 else [])])


SHORTEST = "shortest_us"
_NUMBERS: dict[str, Callable[[str], float]] = {"every": int, SHORTEST: float}
SWITCHES = ("operators", "stacks", "shapes", "memory", "flops", "modules")
_WORDS = {"": True, "on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def detail_from(spec: str | WindowDetail | None) -> WindowDetail | None:
    """Parses a level of detail; `None` for that of the program.

    Args:
        spec: names, separated by commas, with `=off` to exclude one: `stacks,memory=off,every=10`.

    Raises:
        ValueError: naming the wrong part.
    """
    if spec is None or isinstance(spec, WindowDetail):
        return spec
    fields: dict[str, object] = {}
    for part in spec.split(","):
        name, _, value = (text.strip() for text in part.partition("="))
        if name and name in fields:
            raise ValueError(f"detail is {spec!r}: it says {name} twice")
        fields[name] = value
        if name in SWITCHES:
            if value.lower() not in _WORDS:
                raise ValueError(f"detail is {spec!r}: {name} is {value!r}{did_you_mean(value.lower(), ('on', 'off'))}")
            fields[name] = _WORDS[value.lower()]
        elif name in _NUMBERS:
            try:
                fields[name] = _NUMBERS[name](value)
            except ValueError as error:
                raise ValueError(
                    f"detail is {spec!r}: {name} is {value!r}; write a number, such as {name}=10"
                ) from error
    invalid = find_invalid_value(fields, WindowDetail)
    if invalid is not None:
        raise ValueError(f"detail is {spec!r}: {invalid.text}")
    return msgspec.convert(fields, WindowDetail)
