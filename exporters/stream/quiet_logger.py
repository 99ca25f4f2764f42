"""Loggers for the library websockets, which writes down whatever it sends and takes."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class QuietLogger(_Adapter):
    """A logger that has no DEBUG, however the program's loggers are set; what is graver goes on to the logger of this name.

    At DEBUG the library logs every header of a handshake, the token in `Authorization` among them, and the beginning of
    every message. A program that sets the root logger to DEBUG asks for neither.
    """

    def __init__(self, name: str) -> None:
        """Args: the name of the logger behind it."""
        super().__init__(logging.getLogger(name), {})

    def isEnabledFor(self, level: int) -> bool:
        """Whether something of this level is logged."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leaves what is logged as it is, with what the library adds."""
        return msg, kwargs
