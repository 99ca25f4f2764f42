"""`data_process`: the reason why it recorded nothing."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stepscope.compat.mindspore.sources.dataset_waits import DatasetWaits

MODULE = "mindspore.dataset.engine.iterators"


class Iterator:
    """As MindSpore's."""

    def __next__(self) -> int:
        return 7


def test_a_recording_without_waits_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that asked for no batch, also where there are no iterators."""
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    waits = DatasetWaits()
    waits.begin()
    assert waits.end() == "no iterator of a dataset of MindSpore was asked for a batch"
    module = ModuleType(MODULE)
    module.Iterator = Iterator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(Iterator, "__next__", Iterator.__next__)
    for _ in range(2):
        waits.begin()
        assert waits.end() == "no iterator of a dataset of MindSpore was asked for a batch"
    waits.begin()
    assert Iterator().__next__() == 7
    assert waits.end() == ""
