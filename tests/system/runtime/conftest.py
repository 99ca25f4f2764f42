"""Programs of this folder have children."""

from tests.support.families import family

__all__ = ["family"]
