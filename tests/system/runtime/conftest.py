"""Programs of this folder have children."""

from tests.support.process_trees import family

__all__ = ["family"]
