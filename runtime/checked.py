"""The base of settings that users write in code: every name and value is checked when they are made."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from stepscope.runtime.documented import Documented, DocumentedMeta
from stepscope.runtime.misfit import default_of, find_misfit, struct_fields, unknown_field

_MISSING = re.compile(r"Missing required argument '(\w+)'")


class _CheckedMeta(DocumentedMeta):  # pyright: ignore[reportIncompatibleMethodOverride]  # every class has a __doc__
    # Says whose keyword is wrong or missing, and what is the nearest; msgspec names the keyword only.

    if not TYPE_CHECKING:  # for type checkers, calls take the fields
        __doc__ = vars(DocumentedMeta)["__doc__"]  # which a text of its own would hide

        def __call__(cls, *args, **kwargs):
            for name in kwargs:
                if name not in cls.__struct_fields__:
                    raise TypeError(f"{cls.__name__}: {unknown_field(name, cls)}")
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if args:  # which settings take none of
                    raise TypeError(
                        f"{cls.__name__} takes its fields by name; write {_by_name(cls, args[0])}"
                    ) from error
                missing = _MISSING.match(str(error))
                if missing is None:
                    raise
                raise TypeError(f"{cls.__name__}: {missing[1]} must be given") from error


def _by_name(kind: type, given: object) -> str:
    """How a value that was given without a name is probably meant."""
    if isinstance(given, Mapping):
        return f"{kind.__name__}(**{given!r})"
    fields = struct_fields(kind)
    return f"{kind.__name__}({f'{fields[0].name}={given!r}' if fields else ''})"


S = TypeVar("S")


def settings(name: str, given: S | None, kind: type[S]) -> S:
    """What was given for an argument that takes settings, or else the settings that there are by default.

    Args:
        name: of the argument.
        given: what was.
        kind: of the settings.

    Raises:
        TypeError: if it is something else, such as a dict.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        shown = repr(given) if isinstance(given, type) else type(given).__name__
        raise TypeError(f"{name} must be {public_name(kind)}, got {shown}; write {name}={public_name(kind)}(...)")
    return given


class Checked(Documented, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_CheckedMeta):
    """Settings whose fields are checked against their annotations, which msgspec does only for what it decodes."""

    __unchecked__: ClassVar[tuple[str, ...]] = ()
    """Fields that hold objects; the settings check these themselves."""
    __fixed__: ClassVar[Mapping[str, str]] = {}
    """Names that people may look for here, each with the reason why it is none."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: naming the field, the value, what it should be, and the nearest that would do.
        """
        for field in struct_fields(type(self)):
            if field.name in self.__unchecked__:
                continue
            value: Any = getattr(self, field.name)
            at = (type(self).__name__, field.name)
            misfit = find_misfit(value, field.type, default=default_of(field), at=at)
            if misfit is not None:
                raise ValueError(misfit.in_program())


_GROUPS = {"exporters": "exporters", "backends": "backends", "control": "control", "flight": "triggers"}
"""Groups of public names, by the part or folder that defines them."""


def public_name(kind: type) -> str:
    """The name by which a program has a public type, such as `stepscope.exporters.OtlpOptions`."""
    if kind.__name__ in getattr(sys.modules.get("stepscope"), "__all__", ()):
        return f"stepscope.{kind.__name__}"
    groups = [_GROUPS[part] for part in kind.__module__.split(".")[1:3] if part in _GROUPS]
    return ".".join(["stepscope", *groups[:1], kind.__name__])
