"""Tests of stepscope. Shared helpers are imported from `tests.support.basics`."""
