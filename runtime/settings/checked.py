"""The base class of settings that users write in code. It checks every name and value."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from stepscope.runtime.settings.arguments import LIMIT, got
from stepscope.runtime.settings.documented import Documented, DocumentedMeta
from stepscope.runtime.settings.validation import find_invalid_value, unknown_field

_MISSING = re.compile("Missing required argument (.*)")


class _CheckedMeta(DocumentedMeta):  # pyright: ignore[reportIncompatibleMethodOverride]  # every class has a __doc__
    # Adds the class to messages about a wrong or missing keyword; msgspec names the keyword only.

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields
        __doc__ = vars(DocumentedMeta)["__doc__"]  # a docstring here would hide it

        def __call__(cls, *args, **kwargs):
            if args:
                raise TypeError(f"{cls.__name__} takes its fields by name")
            for name in kwargs:
                if name not in cls.__struct_fields__:
                    raise TypeError(f"{cls.__name__}: {unknown_field(name, cls)}")
            try:
                return super().__call__(**kwargs)
            except TypeError as error:
                missing = _MISSING.fullmatch(str(error))
                if missing is None:
                    raise
                raise TypeError(f"{cls.__name__} lacks {missing[1]}") from error


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Returns the fields of a struct with their types. msgspec needs a millisecond for that."""
    return msgspec.structs.fields(kind)


S = TypeVar("S")


def settings(name: str, value: S | None, kind: type[S]) -> S:
    """Checks an argument that takes settings. Returns it, or default settings for `None`.

    Raises:
        TypeError: if it is something else, such as a dict.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        shown = repr(value) if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be {public_name(kind)}, got {shown}; write {name}={public_name(kind)}(...)")
    return value


class Checked(Documented, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_CheckedMeta):
    """Settings whose fields are checked against their annotations. msgspec alone checks only decoded values."""

    __unchecked__: ClassVar[tuple[str, ...]] = ()
    """Fields with arbitrary objects, which the subclass checks itself."""
    __fixed__: ClassVar[Mapping[str, str]] = {}
    """Names that users may expect here, each with the reason why it is not a field."""
    __keywords__: ClassVar[bool] = False
    """True if users write the fields as keywords of a callback or function, which messages name without this class."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: if a value does not fit its annotation; names the field, the value and what it should be.
        """
        for field in _fields(type(self)):
            if field.name in self.__unchecked__:
                continue
            name = field.name if self.__keywords__ else f"{type(self).__name__}.{field.name}"
            value = getattr(self, field.name)
            invalid = find_invalid_value(value, field.type, name)
            if invalid is not None:
                raise ValueError(invalid.text)
            if isinstance(value, int) and not -LIMIT <= value < LIMIT:  # msgspec takes it without an upper limit
                raise ValueError(f"{name} must be a number of at most 64 bits, {got(value)}")


_GROUPS = {"exporters": "exporters", "backends": "backends", "control": "control", "flight": "triggers"}
"""Groups of public names, by the part or folder that defines them."""


def public_name(kind: type) -> str:
    """Returns the public name of a type, such as `stepscope.exporters.OtlpOptions`."""
    if kind.__name__ in getattr(sys.modules.get("stepscope"), "__all__", ()):
        return f"stepscope.{kind.__name__}"
    groups = [_GROUPS[part] for part in kind.__module__.split(".")[1:3] if part in _GROUPS]
    return ".".join(["stepscope", *groups[:1], kind.__name__])
