"""Monitors of this folder follow the file of one job."""

from tests.support.monitors import job

__all__ = ["job"]
