"""What traces say of process groups: read when a window begins and ends, not when it is exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope.torch as ours
from tests.support.operators import torch


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def exported(directory: Path, destroy: Any = None) -> tuple[Any, str]:
    with ours.profile(output_dir=directory / "run") as profile:
        torch.ones(2)
    if destroy is not None:
        destroy()
    profile.export_chrome_trace(directory / "trace.json")
    return json.loads((directory / "trace.json").read_text()), str(profile.run.report())


def test_a_group_that_is_gone_is_told(group: None, tmp_path: Path) -> None:
    """A program destroys its group, and exports afterwards."""
    trace, _ = exported(tmp_path, torch.distributed.destroy_process_group)
    told = trace["distributedInfo"]
    assert (told["backend"], told["rank"], told["world_size"], told["pg_count"]) == ("gloo", 0, 1, 1)
    assert len(told["pg_config"]) == 1


def test_what_torch_does_not_tell_is_said(group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch keeps the groups elsewhere: traces have the rest, and the report says so."""
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_world", object())
    monkeypatch.setattr(torch.distributed, "get_pg_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    trace, report = exported(tmp_path)
    assert trace["distributedInfo"] == {"backend": "gloo", "rank": 0, "world_size": 1, "pg_count": 1}
    assert "traces tell of process groups backend, rank, world_size, pg_count only" in report
