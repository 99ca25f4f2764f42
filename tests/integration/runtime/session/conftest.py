"""Programs of this folder have children."""

from tests.support.process_trees import process_tree

__all__ = ["process_tree"]
