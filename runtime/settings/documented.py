"""Structs whose `__doc__` lists their fields, for `help()` and docs/settings.md."""

from __future__ import annotations

import msgspec


class DocumentedMeta(msgspec.StructMeta):
    """Completes `__doc__` when it is read, so that an import neither parses source nor imports the parser."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        from stepscope.runtime.settings.fields import documented

        return documented(cls)


class Documented(msgspec.Struct, frozen=True, metaclass=DocumentedMeta):
    """A struct whose `__doc__` ends with its fields."""
