"""Structs that tell what their fields are: in `help()`, in docs/settings.md, and where else `__doc__` is shown."""

from __future__ import annotations

import msgspec


class DocumentedMeta(msgspec.StructMeta):
    """Completes `__doc__` when it is asked for, so that import reads no source, and imports nothing that would."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        from stepscope.runtime.settings.fields import documented

        return documented(cls)


class Documented(msgspec.Struct, frozen=True, metaclass=DocumentedMeta):
    """A struct whose `__doc__` ends with its fields."""
