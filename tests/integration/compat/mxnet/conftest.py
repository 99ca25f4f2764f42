"""Each test of this folder records in an empty directory."""

from tests.support.mxnets import here

__all__ = ["here"]
