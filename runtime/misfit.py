"""What does not fit its type in settings that people write: where it is, what stands there, and what would fit."""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from stepscope.runtime.arguments import shown
from stepscope.runtime.nearest import Show, nearest, nearest_value, parts, plain

_PATH = re.compile(r" - at `[^`]*`(?: in `[^`]*`)?$")


class _Walk(NamedTuple):
    """What stays the same on the way through a value."""

    show: Show
    strict: bool


class Misfit(msgspec.Struct, frozen=True):
    """The first part of a value that does not fit."""

    keys: tuple[str | int, ...]
    """The way to it: names of fields, numbers of items."""
    reason: str
    """What should be there."""
    shown: str = ""
    """What is there; empty where the reason says it."""
    hint: str = ""
    """What would fit, to be put behind the rest."""
    unknown: bool = False
    """Whether it is a name that there is no field for; `keys` end with it."""

    def in_program(self) -> str:
        """For who gave it in a program: `Control.poll is 0: ...`."""
        place = path_text(self.keys[:-1] if self.unknown else self.keys)
        return f"{place}{f' is {self.shown}' if self.shown else ''}: {self.reason}{self.hint}"

    def in_file(self) -> str:
        """For who wrote it in a file: `control.poll: ... (0)`."""
        place = "" if self.unknown or not self.keys else f"{path_text(self.keys)}: "
        return f"{place}{self.reason}{f' ({self.shown})' if self.shown and self.keys else ''}{self.hint}"


def find_misfit(
    value: object,
    hint: Any,
    show: Show = repr,
    *,
    default: object = msgspec.NODEFAULT,
    at: tuple[str | int, ...] = (),
    strict: bool = True,
) -> Misfit | None:
    """Looks for the first part of a value that does not fit a type; `None` if all do.

    Args:
        value: of plain Python objects, as JSON is read into, or as programs give it.
        hint: the type.
        show: writes values, in the language of who reads the message.
        default: what is taken where nothing is given.
        at: the way to the value, for messages.
        strict: whether a text is no number, as in what a URL says it is.
    """
    try:
        msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        reason = _PATH.sub("", str(error))
    else:
        return None
    kinds = [plain(part) for part in parts(hint)]
    inside = _inside(value, kinds, _Walk(show, strict), at)
    if inside is not None:
        return inside
    if _is_object(value) and any(map(_is_struct, kinds)):
        return Misfit(at, reason)  # a rule over several fields, which names them

    def short(one: object) -> str:
        return shown(one, show)

    return Misfit(at, reason, short(value), nearest_value(value, hint, default, short))


def path_text(keys: tuple[str | int, ...]) -> str:
    """`window.ranks[1]`, of `("window", "ranks", 1)`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def as_json(value: object) -> str:
    """Writes a value as JSON, for messages about a file."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return msgspec.json.encode(value, enc_hook=repr).decode()


def unknown_field(name: str, kind: type[msgspec.Struct], inside: str = "") -> str:
    """Says that a struct has no such field, and which is the nearest; for a name in its `__fixed__`, why there is none.

    Args:
        name: the name.
        kind: the struct.
        inside: the way to the struct, if it is a part of something.
    """
    place = f" in {inside}" if inside else ""
    fixed: Mapping[str, str] = getattr(kind, "__fixed__", {})
    if name in fixed:
        return f"{name}{place} cannot be changed at run time: {fixed[name]}"
    return f"unknown field {name!r}{place}{nearest(name, kind.__struct_encode_fields__)}"


def _inside(value: object, kinds: list[Any], walk: _Walk, at: tuple[str | int, ...]) -> Misfit | None:
    """What does not fit inside of a value whose own type is one of these."""
    for kind in kinds:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        found: Misfit | None = None
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, object]", value)
            if _is_struct(kind):
                found = _in_struct(fields, kind, walk, at)
            elif isinstance(origin, type) and issubclass(origin, Mapping):
                found = _first(((str(key), item, arguments[1]) for key, item in fields.items()), walk, at)
        elif isinstance(value, list | tuple) and origin in (list, tuple, set, frozenset) and arguments:
            entries = cast("list[object] | tuple[object, ...]", value)
            uniform = origin is not tuple or arguments[-1] is ...
            hints = [arguments[0]] * len(entries) if uniform else list(arguments)
            found = _first(zip(range(len(entries)), entries, hints, strict=False), walk, at)
        if found is not None:
            return found
    return None


def _first(items: Iterable[tuple[str | int, object, Any]], walk: _Walk, at: tuple[str | int, ...]) -> Misfit | None:
    """The first of several that does not fit; each with its key, and the type that it should have."""
    for key, item, hint in items:
        found = find_misfit(item, hint, walk.show, at=(*at, key), strict=walk.strict)
        if found is not None:
            return found
    return None


def _in_struct(
    fields: Mapping[Any, object], kind: type[msgspec.Struct], walk: _Walk, at: tuple[str | int, ...]
) -> Misfit | None:
    known = {field.encode_name: field for field in struct_fields(kind)}
    for name, value in fields.items():
        field = known.get(name)
        if field is None:
            if kind.__struct_config__.forbid_unknown_fields:
                return Misfit((*at, str(name)), unknown_field(str(name), kind, path_text(at)), unknown=True)
            continue
        found = find_misfit(value, field.type, walk.show, default=default_of(field), at=(*at, name), strict=walk.strict)
        if found is not None:
            return found
    missing = [name for name, field in known.items() if field.required and name not in fields]
    return Misfit((*at, missing[0]), "it must be given") if missing else None


@functools.cache
def struct_fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a struct with their types. To find these out takes msgspec a millisecond."""
    return msgspec.structs.fields(kind)


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """What a field has where nothing is given; `msgspec.NODEFAULT` if something must be."""
    if field.default_factory is not msgspec.NODEFAULT:
        return cast("typing.Callable[[], object]", field.default_factory)()
    return field.default


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
