"""Records annotations that were written for NVTX (packages `nvtx` and `torch.cuda.nvtx`) as spans and instants.

The domain of an annotation becomes the category of its event; NVTX's category, color and payload become arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Never, Protocol, TypeVar

import msgspec

from stepscope.backends.torch.compile import substitute
from stepscope.runtime import _core
from stepscope.runtime.loop_threads.loop_thread import is_own
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import check_names, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_span = _core.span

Color = str | int | None
Category = str | int | None
Payload = object


_NOTHING: dict[str, Any] = {}


def _arguments(domain: str | None, color: Color, category: Category, payload: Payload) -> dict[str, Any]:
    if domain is None and color is None and category is None and payload is None:
        return _NOTHING
    made = {"category": domain, "color": color, "nvtx_category": category, "payload": payload}
    return {key: value for key, value in made.items() if value is not None}


_NAMES = ("message", "color", "domain", "category", "payload")


class Annotation(Protocol):
    """A span, for `with` and as a decorator."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, function: F, /) -> F: ...


def annotate(
    message: str | None = None,
    color: Color = None,
    domain: str | None = None,
    category: Category = None,
    payload: Payload = None,
    **unknown: Never,
) -> Annotation:
    """A span, for `with` and as a decorator of functions, coroutine functions and generator functions.

    Args:
        message: its name. Default: of a function that it decorates, that function's.
        color: of the range; an argument of the span.
        domain: its category. Default: `user_annotation`.
        category: the argument `nvtx_category`.
        payload: a number, or a list of them; an argument.

    Raises:
        TypeError: if message or domain is no str, or for an unknown argument.
    """
    if unknown:
        check_names("annotate", unknown, _NAMES)
    if domain is None and color is None and category is None and payload is None and message is not None:
        return _span(message)
    arguments = _arguments(domain, color, category, payload)
    return Unnamed(arguments) if message is None else _span(message, **arguments)


class Unnamed:
    """An annotation without a message: it has the name of the function that it decorates."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._span = _span("", **arguments)

    def __call__(self, function: F, /) -> F:
        named: Any = getattr(function, "__func__", function)  # of a class or static method
        return _span(getattr(named, "__name__", type(named).__name__), **self._arguments)(function)

    def __enter__(self) -> Unnamed:
        self._span.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._span.__exit__(*error)


def mark(
    message: str | None = None,
    color: Color = None,
    domain: str | None = None,
    category: Category = None,
    payload: Payload = None,
    **unknown: Never,
) -> None:
    """Records an instant. Arguments and errors are those of `annotate`."""
    if unknown:
        check_names("mark", unknown, _NAMES)
    _core.instant(message or "", **_arguments(domain, color, category, payload))


class _Open:
    """A pushed range, and the one below it."""

    __slots__ = ("below", "depth", "span")

    def __init__(self, span: _core.span, below: _Open | None) -> None:
        self.span = span
        self.below = below
        self.depth: int = 0 if below is None else below.depth + 1


_stacks: dict[str | None, ContextVar[_Open | None]] = {None: ContextVar("stepscope_nvtx", default=None)}
"""Pushed ranges of each domain, per thread and task."""


def _stack(domain: str | None) -> ContextVar[_Open | None]:
    found = _stacks.get(domain)
    if found is None:
        found = _stacks.setdefault(domain, ContextVar(f"stepscope_nvtx_{domain}", default=None))
    return found


def push_range(
    message: str | None = None,
    color: Color = None,
    domain: str | None = None,
    category: Category = None,
    payload: Payload = None,
) -> int:
    """Begins a range of this thread or task, which `pop_range` ends. Arguments and errors are those of `annotate`.

    Returns:
        How many ranges of the domain were open before.
    """
    span = _span(message or "", **_arguments(domain, color, category, payload))
    stack = _stack(domain)
    top = _Open(span, stack.get())
    stack.set(top)
    span.__enter__()
    return top.depth


def pop_range(domain: str | None = None) -> int:
    """Ends the latest range of this thread or task that was pushed in the domain.

    Returns:
        How many are left; -1 if there was none to end.
    """
    stack = _stack(domain)
    top = stack.get()
    if top is None:
        return -1
    stack.set(top.below)
    top.span.__exit__(None, None, None)
    return top.depth


_range_numbers = itertools.count(1)


class RangeId(int):
    """Number of a range that `start_range` began. The range lasts as long as this object: it is discarded if no reference is
    left."""

    span: _core.span | None

    def __new__(cls, span: _core.span) -> RangeId:
        made = super().__new__(cls, next(_range_numbers))
        made.span = span
        return made


def start_range(
    message: str | None = None,
    color: Color = None,
    domain: str | None = None,
    category: Category = None,
    payload: Payload = None,
) -> RangeId:
    """Begins a range that may be ended anywhere, by `end_range`, in another thread or task too. Arguments and errors are
    those of `annotate`."""
    span = _span(message or "", **_arguments(domain, color, category, payload))
    span.__enter__()
    return RangeId(span)


def end_range(range_id: RangeId | None) -> None:
    """Ends a range; one that has ended stays as it is, and `None` is none.

    Raises:
        TypeError: if it is none that `start_range` has given.
    """
    if range_id is None:
        return
    if not isinstance(range_id, RangeId):
        raise TypeError(f"end_range() takes what start_range() has returned, {got(range_id)}")
    span, range_id.span = range_id.span, None
    if span is not None:
        span.__exit__(None, None, None)


def range_push(msg: str) -> int:
    """Calls `push_range(msg)`, under the name of `torch.cuda.nvtx`."""
    return push_range(msg)


def range_pop() -> int:
    """Calls `pop_range()`, under the name of `torch.cuda.nvtx`."""
    return pop_range()


def range_start(msg: str) -> RangeId:
    """Calls `start_range(msg)`, under the name of `torch.cuda.nvtx`."""
    return start_range(msg)


def range_end(range_id: RangeId) -> None:
    """Calls `end_range(range_id)`, under the name of `torch.cuda.nvtx`."""
    end_range(range_id)


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Generator[None]:
    """Makes a span named `msg.format(*args, **kwargs)`, like `torch.cuda.nvtx.range`."""
    with _span(msg.format(*args, **kwargs)):
        yield


def enabled() -> bool:
    """Whether anything records now."""
    return bool(_core.recording())


def _no_number(*arguments: object, **named: object) -> int:
    return 0


def _no_range(*arguments: object, **named: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


# In compiled code ranges are left out, as the compiler cannot follow them.
for _call in (mark, push_range, pop_range, start_range, end_range, range_push, range_pop, range_start, range_end):
    substitute(_call, _no_number)
substitute(range, _no_range)


class EventAttributes(msgspec.Struct):
    """The attributes of an event of a `Domain`. They may be changed from one event to the next."""

    message: str | None = ""
    """Name of the event."""
    color: Color = None
    """The event's argument `color`."""
    category: Category = None
    """The argument `nvtx_category`."""
    payload: Any = None
    """The event's argument `payload`."""


class Domain:
    """A domain as `get_domain` gives it: its name is the category of its events.

    Args:
        name: any text.

    Raises:
        TypeError: if the name is no str.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None:
            _core.category(name)
        self.name = name

    def get_event_attributes(
        self, message: str | None = None, color: Color = None, category: Category = None, payload: Payload = None
    ) -> EventAttributes:
        """Makes attributes for the methods of this domain."""
        return EventAttributes(message or "", color, category, payload)

    def set_event_attributes(self, attributes: EventAttributes, **changed: Any) -> None:
        """Changes attributes.

        Args:
            attributes: whose they are.
            changed: `message`, `color`, `category` and `payload`, those that shall be others.

        Raises:
            TypeError: for another name.
        """
        for name, value in changed.items():
            if name not in EventAttributes.__struct_fields__:
                raise TypeError(f"unknown attribute {name!r}{did_you_mean(name, EventAttributes.__struct_fields__)}")
            setattr(attributes, name, value)

    def get_registered_string(self, string: str) -> str:
        """The text itself: names are registered when they are first used."""
        return string

    def get_category_id(self, name: str) -> str:
        """The name itself: categories need no numbers here."""
        return name

    def push_range(self, attributes: EventAttributes | str | None = None, **keywords: Any) -> int:
        """Calls `push_range` with this domain, with attributes or keywords; keywords change attributes."""
        return push_range(*self._values(attributes, keywords))

    def pop_range(self) -> int:
        """Calls `pop_range` with this domain."""
        return pop_range(self.name)

    def start_range(self, attributes: EventAttributes | str | None = None, **keywords: Any) -> RangeId:
        """Calls `start_range` with this domain, with attributes or keywords; keywords change attributes."""
        return start_range(*self._values(attributes, keywords))

    def end_range(self, range_id: RangeId | None) -> None:
        """Calls `end_range` with this domain."""
        end_range(range_id)

    def mark(self, attributes: EventAttributes | str | None = None, **keywords: Any) -> None:
        """Calls `mark` with this domain, with attributes or keywords; keywords change attributes."""
        mark(*self._values(attributes, keywords))

    def _values(
        self, attributes: EventAttributes | str | None, keywords: dict[str, Any]
    ) -> tuple[str | None, Color, str | None, Category, Payload]:
        """The arguments of the function of the same name."""
        made = attributes if isinstance(attributes, EventAttributes) else EventAttributes(attributes)
        self.set_event_attributes(made, **keywords)
        return made.message, made.color, self.name, made.category, made.payload

    def __repr__(self) -> str:
        return f"Domain({self.name!r})"


_domains: dict[str | None, Domain] = {}


def get_domain(name: str | None = None) -> Domain:
    """The domain of a name, always the same object.

    Raises:
        TypeError: if the name is no str.
    """
    found = _domains.get(name)
    return _domains.setdefault(name, Domain(name)) if found is None else found


_PROFILED = "nvtx.py"
"""Domain of the spans of `Profile`, as in NVTX."""


class Profile:
    """Annotates every call of a function, between `enable` and `disable`, of the calling thread and of later ones.

    A span is named `file.py:line(function)`, in the domain `nvtx.py`. Each call costs some µs, also while nothing records:
    `stepscope run` samples stacks for less, and `stepscope.instrument` makes spans of chosen functions. It takes the place
    of another profiler of Python's `sys.setprofile`.

    Args:
        linenos: whether names have the file and the line.
        annotate_cfuncs: whether calls of functions written in C are annotated, too.
    """

    def __init__(self, linenos: bool = True, annotate_cfuncs: bool = True) -> None:
        self.linenos = linenos
        self.annotate_cfuncs = annotate_cfuncs
        self._on = False

    def enable(self) -> None:
        """Begins to annotate calls."""
        self._on = True
        threading.setprofile(self._begin_thread)
        sys.setprofile(self._call)

    def disable(self) -> None:
        """Ends the annotation, and the spans of open calls with it. Another thread ends at its next call."""
        self._on = False
        threading.setprofile(None)
        self._end()

    def _begin_thread(self, frame: FrameType, event: str, function: Any) -> None:
        own = is_own(threading.current_thread())
        sys.setprofile(None if own else self._call)

    def _end(self) -> None:
        sys.setprofile(None)
        while pop_range(_PROFILED) > 0:
            pass

    def _call(self, frame: FrameType, event: str, function: Any) -> None:
        code = frame.f_code
        if not self._on:
            self._end()
        elif code.co_filename == __file__ or (event.startswith("c_") and not self.annotate_cfuncs):
            return
        elif event == "call":
            line = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}({code.co_name})"
            push_range(line if self.linenos else code.co_name, domain=_PROFILED)
        elif event == "c_call":
            push_range(function.__name__, domain=_PROFILED)
        else:
            pop_range(_PROFILED)
