"""The valid name or value that is nearest to one that is none, for messages."""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import msgspec

Show = Callable[[object], str]
"""How a value is written where the message is read: as Python, or as JSON."""

_UNIONS = (typing.Union, types.UnionType)
_SWITCHES = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}
_LONGEST = 4096
"""Characters of a text that a valid one is looked for in."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean ...?`, or all that there are, for a message."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


P = ParamSpec("P")
R = TypeVar("R")


def suggesting(function: Callable[P, R], by_name: Callable[[object], str] = lambda value: "") -> Callable[P, R]:
    """A decorator: the function says which argument is the nearest to an unknown one, and which ones want a name.

    Args:
        function: it.
        by_name: how a value is given by name, such as `rank=3`, for one that was given without; empty if unknown.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name != "self"]
    shown = function.__qualname__.removesuffix(".__init__")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = sum(parameter.kind in kinds for parameter in parameters.values())
    named = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{shown}() has no argument {name!r}{nearest(name, names)}")
        if named and len(args) > positional:
            value: object = args[positional]
            wanted = by_name(value)
            hint = f"write {shown}({wanted})" if wanted else f"names: {', '.join(named)}"
            raise TypeError(f"{shown}() does not take {value!r} without a name; {hint}")
        return function(*args, **kwargs)

    return call


def nearest_value(value: object, hint: Any, default: object, show: Show) -> str:
    """What could stand in the place of a value, for a message; empty if nothing is near.

    Args:
        value: one that does not fit.
        hint: the type that it should have.
        default: what is taken where nothing is given; `msgspec.NODEFAULT` if something must be.
        show: writes a value.
    """
    alternatives = parts(hint)
    words = [word for part in alternatives for word in _words(part)]
    if isinstance(value, str) and words:
        return nearest(value, words)
    for candidate in _candidates(value, alternatives):
        try:
            found: object = msgspec.convert(candidate, hint, strict=False)
        except msgspec.ValidationError:
            continue
        return f"; the nearest is {show(found)}"
    if isinstance(value, int | float):
        limits = [text for part in alternatives for text in _limits(value, part)]
        if limits:
            return f"; the nearest is any number {limits[0]}"
    if words:
        return f"; known: {', '.join(sorted(words))}"
    return "" if default is msgspec.NODEFAULT else f"; the default is {show(default)}"


def parts(hint: Any) -> list[Any]:
    """The types that a value may have, where it may have one of several."""
    if typing.get_origin(hint) in _UNIONS:
        return [part for each in typing.get_args(hint) for part in parts(each)]
    return [hint]


def plain(hint: Any) -> Any:
    """A type without what is said of its range."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _words(part: Any) -> list[str]:
    kind = plain(part)
    if typing.get_origin(kind) is Literal:
        return [word for word in typing.get_args(kind) if isinstance(word, str)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(member.value) for member in kind]
    return []


def _candidates(value: Any, alternatives: list[Any]) -> Iterator[object]:
    """Values like this one, the likeliest first; they may not fit either."""
    kinds = {kind if isinstance(kind, type) else typing.get_origin(kind) for kind in map(plain, alternatives)}
    if isinstance(value, str):
        yield from _of_text(value[:_LONGEST], alternatives, kinds)
    elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        yield from _of_number(value, alternatives, kinds)
    elif isinstance(value, float) and not math.isnan(value):
        yield from (bound for part in alternatives for bound in _bounds(value, part))
    elif isinstance(value, list | tuple) and len(value) == 1:  # pyright: ignore[reportUnknownArgumentType]
        yield value[0]
    if not isinstance(value, list | tuple | dict):
        yield [value]


def _of_text(text: str, alternatives: list[Any], kinds: set[Any]) -> Iterator[object]:
    if kinds & {int, float, bool}:
        yield text.strip().lower()
        if bool in kinds and text.strip().lower() in _SWITCHES:
            yield _SWITCHES[text.strip().lower()]
        try:
            number = float(text)
        except ValueError:
            pass
        else:
            yield from _of_number(number, alternatives, kinds) if math.isfinite(number) else ()
    if Path in kinds:
        yield Path(text)
    if str in kinds:
        for part in alternatives:
            lengths = [meta.max_length for meta in _metas(part) if meta.max_length is not None]
            # A pattern is of what a name may be made of, so each character can be tried by itself.
            kept = "".join(letter for letter in text if _fits(letter, part))
            yield from (kept[:length] for length in (*lengths, None) if kept)


def _of_number(value: float, alternatives: list[Any], kinds: set[Any]) -> Iterator[object]:
    if str in kinds and not kinds & {int, float} and abs(value) < 1 << 64:  # Python refuses to write any digits
        yield str(value)
    numbers = {int, float} & kinds
    if numbers:
        whole = int(value) if isinstance(value, bool) else value
        nearby: list[float] = [whole, *(bound for part in alternatives for bound in _bounds(whole, part))]
        yield from nearby if float in numbers else (round(number) for number in nearby)
    elif bool in kinds and value in (0, 1):
        yield bool(value)


def _bounds(value: float, part: Any) -> Iterator[float]:
    """The ends of the range of a type that a number lies outside of."""
    step = 1 if plain(part) is int else 0
    for meta in _metas(part):
        if meta.ge is not None and value < meta.ge:
            yield meta.ge
        if meta.gt is not None and value <= meta.gt and step:
            yield meta.gt + step
        if meta.le is not None and value > meta.le:
            yield meta.le
        if meta.lt is not None and value >= meta.lt and step:
            yield meta.lt - step


def _limits(value: float, part: Any) -> Iterator[str]:
    """In words, the end of a range that does not belong to it."""
    for meta in _metas(part):
        if meta.gt is not None and not value > meta.gt:
            yield f"above {meta.gt:g}"
        if meta.lt is not None and not value < meta.lt:
            yield f"below {meta.lt:g}"


def _metas(part: Any) -> list[msgspec.Meta]:
    return [meta for meta in getattr(part, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]


def _fits(value: object, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True
