"""The types of the live page's modules, which are those of the HTTP interface."""

from __future__ import annotations

from typing import Any

import pytest

from tools import page_types


def test_the_types_are_those_of_the_interface() -> None:
    """`make docs` writes them."""
    assert page_types.FILE.read_text(encoding="utf-8") == page_types.declarations(page_types.document())


def test_a_schema_of_an_unknown_form_is_an_error() -> None:
    """No type is better than a wrong one."""
    schema: dict[str, Any] = {"properties": {"it": {"allOf": []}}}
    with pytest.raises(ValueError, match="tools/page_types"):
        page_types.declarations({"paths": {}, "components": {"schemas": {"It": schema}}})
