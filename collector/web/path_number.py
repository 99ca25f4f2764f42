"""Numbers in the paths of the HTTP interface: of so many digits that each is one, and fits wherever it goes."""

from __future__ import annotations

from typing import Any

from starlette.convertors import Convertor, register_url_convertor

KIND = "number"
"""What it is called in a path: `{window:number}`. With more digits there is no such path."""
DIGITS = 10
"""More than any window's index has, of 32 bits."""
SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**DIGITS - 1}
"""In the OpenAPI document."""


class PathNumber(Convertor[int]):
    """Starlette's own takes any number of digits, of which Python makes no integer, and others no 64 bits."""

    regex = f"[0-9]{{1,{DIGITS}}}"

    def convert(self, value: str) -> int:
        """The number of its text."""
        return int(value)

    def to_string(self, value: int) -> str:
        """The text of a number."""
        return str(value)


register_url_convertor(KIND, PathNumber())
