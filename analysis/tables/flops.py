"""Floating-point operations: by operator, in each step, and their rate as a share of a declared peak.

The program declares them as an argument of a span, `span("forward", FLOPs=6e9)`. Otherwise they are estimates: those of
operators whose formula is here, from the shapes of their inputs, and torch's own for others (`with_flops`). The formulas are
those of `torch.utils.flop_counter`: a multiplication and an addition are two operations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf, prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import FlopsAnswer, OperatorFlops
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.settings.arguments import got, number_argument
from stepscope.runtime.windows.step_facts import Facts

PEAK: Final = "peak_flops"
"""Key of a run's metadata: the most floating-point operations in a second that its device can do."""

ARGUMENT: Final = "FLOPs"
"""Argument of a span, as torch's profiler names it."""

MOST_OPERATORS = 20
"""Names in an answer."""

_DIMENSIONS, _VALUES = "Input Dims", "Concrete Inputs"
_OPERATORS = ("cpu_op", "operator")
_COUNTED_BELOW: Final = "aten::conv2d"
"""torch counts it here; the formula counts `aten::convolution`, which it calls."""

_Shapes = list[list[int]]
_Formula = Callable[[_Shapes, list[str]], int]


def _product_of(first: int, second: int) -> _Formula:
    """Returns a formula for products of two of the inputs, which are matrices or stacks of them."""

    def flops(shapes: _Shapes, _: list[str]) -> int:
        return 2 * prod(shapes[first]) * shapes[second][-1]

    return flops


def _attention(shapes: _Shapes, _: list[str]) -> int:
    """Scores, and their product with the values."""
    query, key, value = shapes[:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(shapes: _Shapes, _: list[str]) -> int:
    """The scores again, and the gradients of scores, values, queries and keys."""
    query, key, value = shapes[1:4]
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _convolution(shapes: _Shapes, values: list[str]) -> int:
    """Each weight once for each place of the output; of the input, if it is transposed."""
    data, weight = shapes[:2]
    stride, padding, dilation = ([int(number) for number in text.strip("[]").split(",")] for text in values[3:6])
    places = data[2:]
    if values[6] != "True":
        widths = [dilation[at % len(dilation)] * (size - 1) + 1 for at, size in enumerate(weight[2:])]
        places = [
            (size + 2 * padding[at % len(padding)] - widths[at]) // stride[at % len(stride)] + 1
            for at, size in enumerate(places)
        ]
    return 2 * data[0] * prod(places) * prod(weight)


def _convolution_backward(shapes: _Shapes, values: list[str]) -> int:
    """The gradients of input and weight, as far as they are wanted; each takes as much as forward."""
    gradient, data, weight = shapes[:3]
    places = data[2:] if values[7] == "True" else gradient[2:]
    wanted = values[10].strip("[]").split(", ")[:2].count("True")
    return 2 * wanted * gradient[0] * prod(places) * prod(weight)


_FORMULAS: Final[Mapping[str, _Formula]] = {
    "aten::mm": _product_of(0, 1),
    "aten::_scaled_mm": _product_of(0, 1),
    "aten::bmm": _product_of(0, 1),
    "aten::addmm": _product_of(1, 2),
    "aten::_addmm_activation": _product_of(1, 2),
    "aten::baddbmm": _product_of(1, 2),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **{
        f"aten::_scaled_dot_product_{kind}": formula
        for kinds, formula in (
            (("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"), _attention),
            (
                (
                    "flash_attention_backward",
                    "efficient_attention_backward",
                    "cudnn_attention_backward",
                    "flash_attention_for_cpu_backward",
                ),
                _attention_backward,
            ),
        )
        for kind in kinds
    },
}


class FlopsTable:
    """Adds up the floating-point operations of spans.

    If the program declares them, the estimates of operators are left out, as they would be counted twice.
    """

    def __init__(self) -> None:
        self._formulas = SpanChoice(lambda name, _: name in _FORMULAS)
        self._key = strings.intern(ARGUMENT)
        self._pattern = re.compile(re.escape(self._key.to_bytes(4, "little")))
        self._operators = np.array([strings.category(name) for name in _OPERATORS])
        self._sums: tuple[defaultdict[int, list[int]], ...] = tuple(defaultdict(lambda: [0, 0, 0]) for _ in range(2))
        self._steps: tuple[defaultdict[tuple[int, int], int], ...] = tuple(defaultdict(int) for _ in range(2))

    @property
    def declared(self) -> bool:
        """Whether the program declares them."""
        return bool(self._sums[True])

    @property
    def by_step(self) -> Mapping[tuple[int, int], int]:
        """Floating-point operations by window and step."""
        return self._steps[self.declared]

    def rows(self) -> tuple[OperatorFlops, ...]:
        """Rows by name, the most operations first."""
        rows = [
            OperatorFlops(strings.text(name), count, flops, ns)
            for name, (count, flops, ns) in self._sums[self.declared].items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.flops, row.name)))

    def update(self, batch: EventBatch) -> None:
        """Takes the spans of a batch."""
        events = batch.events
        inline = (events["flags"] & int(Flag.ARG_INLINE)) != 0
        chosen = inline & (events["args_at"] == self._key)
        chosen |= ~inline & (self._formulas.of(events) | self._have_key(events, batch.args))
        events = events[chosen & (events["kind"] == Kind.SPAN) & (events["args_len"] > 0)]
        operators = np.isin(events["category"], self._operators)
        for event, of_operator in zip(events, operators.tolist(), strict=True):
            flops = _flops_of(event, batch)
            if flops <= 0:
                continue
            declared = not of_operator
            sums = self._sums[declared][int(event["name"])]
            sums[0] += 1
            sums[1] += flops
            sums[2] += int(event["dur"])
            self._steps[declared][batch.window, int(event["step"])] += flops

    def answer(self, steps: Facts, peak: float | None) -> FlopsAnswer | None:
        """These numbers as the answer has them; `None` without any.

        Args:
            steps: that are judged.
            peak: floating-point operations in a second that the device can do at most, if that was declared.
        """
        rows = self.rows()
        if not rows:
            return None
        each = [self.by_step.get(key, 0) for key in zip(steps["window"].tolist(), steps["step"].tolist(), strict=True)]
        took = float((steps["end"] - steps["begin"]).sum())
        rate = sum(each) / took * 1e9 if took and any(each) else None
        return FlopsAnswer(
            total=sum(row.flops for row in rows),
            a_step=sum(each) / len(each) if rate is not None else None,
            rate=rate,
            peak=peak,
            declared=self.declared,
            operators=rows[:MOST_OPERATORS],
            names=len(rows),
        )

    def _have_key(self, events: Block, heap: bytes) -> NDArray[np.bool_]:
        """Which of the events may have the argument: its number is in their part of the heap."""
        places = np.array([match.start() for match in self._pattern.finditer(heap)], np.int64)
        if not len(places):
            return np.zeros(len(events), np.bool_)
        begin = events["args_at"].astype(np.int64)
        last: NDArray[np.int64] = np.searchsorted(places, begin + events["args_len"])
        return np.searchsorted(places, begin) < last


def _flops_of(event: Any, batch: EventBatch) -> int:
    """Operations of one span; 0 if it has none."""
    values = arguments(batch, event)
    name = strings.text(int(event["name"]))
    if formula := _FORMULAS.get(name):
        with suppress(KeyError, TypeError, ValueError, IndexError):  # shapes that were not kept, or not whole
            return formula(values[_DIMENSIONS], values.get(_VALUES, []))
    return 0 if name == _COUNTED_BELOW else int(_amount(values.get(ARGUMENT)) or 0)


def _amount(value: object) -> float | None:
    """A number of operations; `None` for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        return None
    return value


def peak_of(metadata: Mapping[str, Any]) -> float | None:
    """The peak that a run's metadata declare; `None` if they declare none, or no positive number."""
    peak = _amount(metadata.get(PEAK))
    return None if peak is None else float(peak)


def read_peak(value: Any) -> float:
    """The peak that a user declares as an argument.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is not above 0.
    """
    number_argument(PEAK, value, unit="floating-point operations in a second")
    try:
        peak = float(value)
    except OverflowError:  # a whole number that no float is near to
        peak = inf
    if _amount(peak) is None:
        raise ValueError(f"{PEAK} must be a number above 0 and below 1e30, such as 989e12, {got(value)}")
    return peak


def utilization_of(flops: float, ns: float, peak: float | None) -> float | None:
    """The rate of operations as a share of the peak; `None` where one is not known."""
    return flops / ns * 1e9 / peak if ns and peak else None


def human_flops(value: float, unit: str = "FLOP") -> str:
    """`1.23 GFLOP`, with three digits."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:,.0f} E{unit}"


def flops_text(answer: FlopsAnswer) -> str:
    """A line about the operations of a process."""
    what = "" if answer.declared else "estimated "
    parts = [f"{what}{human_flops(answer.total)} in all"]
    if answer.a_step is not None and answer.rate is not None:
        parts = [f"{what}{human_flops(answer.a_step)} a step, {human_flops(answer.rate, 'FLOP/s')}"]
        share = answer.utilization
        parts += [
            f"{share:.1%} of the declared peak of {human_flops(answer.peak, 'FLOP/s')}"
            if share is not None and answer.peak is not None
            else f"no peak is declared ({PEAK} in the run's metadata, or --peak-flops)"
        ]
    first = answer.operators[0]
    parts.append(f"{first.flops / answer.total:.0%} in {first.name}")
    return "; ".join(parts)
