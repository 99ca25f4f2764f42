"""The base of settings that users write in code: every value is checked when they are made."""

from __future__ import annotations

import typing
from typing import ClassVar

import msgspec

from stepscope.runtime.documented import Documented


class Checked(Documented, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings whose fields are checked against their annotations, which msgspec does only for what it decodes."""

    __unchecked__: ClassVar[tuple[str, ...]] = ()
    """Fields that hold objects; the settings check these themselves."""

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: naming the field, the value and what it should be.
        """
        hints = typing.get_type_hints(type(self), include_extras=True)
        for name in self.__struct_fields__:
            if name in self.__unchecked__:
                continue
            value = getattr(self, name)
            try:
                msgspec.convert(value, hints[name])
            except msgspec.ValidationError as error:
                raise ValueError(f"{type(self).__name__}.{name} is {value!r}: {error}") from error
