"""The types of the live page's modules, which are those of the HTTP interface."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools import page_types


def test_the_types_are_those_of_the_interface() -> None:
    """Each type that the page's modules name is there: tsc would take one that it does not find for any."""
    made = page_types.declarations(page_types.document())
    modules = page_types.FILE.parent.glob("*.js")
    named = {name for module in modules for name in re.findall(r'import\("\./api"\)\.(\w+)', module.read_text("utf-8"))}
    assert len(named) > 10
    assert named <= set(re.findall(r"export interface (\w+)", made))


def test_a_schema_of_an_unknown_form_is_an_error() -> None:
    """No type is better than a wrong one."""
    schema: dict[str, Any] = {"properties": {"it": {"allOf": []}}}
    with pytest.raises(ValueError, match="tools/page_types"):
        page_types.declarations({"paths": {}, "components": {"schemas": {"It": schema}}})
