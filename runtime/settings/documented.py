"""Structs whose `__doc__` lists their fields, from their source, for `help()` and docs/settings.md."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_UNIONS = (typing.Union, types.UnionType)


class DocumentedMeta(msgspec.StructMeta):
    """Completes `__doc__` when it is read, so that an import parses no source."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        own = inspect.cleandoc(vars(cls).get("__doc__") or "")
        fields = "\n".join(map(str, fields_of(typing.cast(type[msgspec.Struct], cls))))
        return "\n\n".join(part for part in (own, fields and "Attributes:\n" + textwrap.indent(fields, "    ")) if part)


class Documented(msgspec.Struct, frozen=True, metaclass=DocumentedMeta):
    """A struct whose `__doc__` ends with its fields."""


class Field(msgspec.Struct, frozen=True):
    """Description of a field."""

    name: str
    type: str
    default: str | None
    """As written in the source; `None` if a value is required."""
    range: str
    """Allowed values, such as `at least 0`; empty if all values of the type are allowed."""
    text: str
    """The docstring below the field in the source; empty if there is none or the sources are not installed."""

    def __str__(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        range_ = f"  ({self.range})" if self.range else ""
        lines = (f"{self.name}: {self.type}{default}{range_}", *self.text.splitlines())
        return "\n    ".join(lines)


def fields_of(kind: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Returns the descriptions of the fields of a struct, in order."""
    written = _written(kind)
    names, values = kind.__struct_fields__, kind.__struct_defaults__
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: list[Field] = []
    for name in names:
        default, text = written.get(name, (None, ""))
        if default is None and defaults.get(name, msgspec.NODEFAULT) is not msgspec.NODEFAULT:
            default = repr(defaults[name])
        fields.append(Field(name, _type_text(kind, name), default, _range_text(hints[name]), text))
    return tuple(fields)


def _written(kind: type[msgspec.Struct]) -> dict[str, tuple[str | None, str]]:
    """Default and docstring of each field in the source, by name."""
    try:
        module = ast.parse(inspect.getsource(inspect.getmodule(kind) or kind))
    except (OSError, TypeError):  # installed without sources, or written at a prompt
        return {}
    found: dict[str, tuple[str | None, str]] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for item, below in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    text = ""
                    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                        text = inspect.cleandoc(str(below.value.value))
                    found[item.target.id] = (ast.unparse(item.value) if item.value else None, text)
    return found


def _type_text(kind: type[msgspec.Struct], name: str) -> str:
    """The annotation of a field, without its range."""
    plain = _Plain(vars(sys.modules[kind.__module__]))
    return ast.unparse(plain.visit(ast.parse(str(kind.__annotations__[name]), mode="eval")))


class _Plain(ast.NodeTransformer):
    """Replaces `Annotated[int, ...]`, and aliases of it, by `int`."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        meant = self._names.get(node.id)
        if typing.get_origin(meant) is Annotated:
            return ast.Name(typing.get_args(meant)[0].__name__)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            plain: ast.AST = self.visit(node.slice.elts[0])
            return plain
        return self.generic_visit(node)


def _range_text(hint: Any) -> str:
    if typing.get_origin(hint) in _UNIONS:
        return ", ".join(filter(None, map(_range_text, typing.get_args(hint))))
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return ", ".join(filter(None, map(_bounds, metas)))


def _bounds(meta: msgspec.Meta) -> str:
    if meta.max_length is not None:
        return f"at most {meta.max_length} items"
    if meta.ge is not None and meta.le is not None:
        return f"{_number(meta.ge)} to {_number(meta.le)}"
    words = (("above", meta.gt), ("at least", meta.ge), ("below", meta.lt), ("at most", meta.le))
    return ", ".join(f"{word} {_number(bound)}" for word, bound in words if bound is not None)


def _number(bound: float) -> str:
    """A bound as people write it: large powers of two as a shift."""
    if isinstance(bound, int) and bound >= 1 << 12 and not bound & (bound - 1):
        return f"1 << {bound.bit_length() - 1}"
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
