"""How a job is divided among its ranks: by torch's process groups, by MindSpore's context, and as the program declares it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.analysis.tables.parallel_layout import layout_of
from stepscope.backends.parallel_layout import (
    DECLARED,
    kind_of,
    layout_now,
    of_declared,
    of_mindspore,
    of_torch,
    with_layout,
)

GROUPS: list[dict[str, Any]] = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 8},
    {"pg_name": "4", "pg_desc": "mesh_pp", "ranks": [3, 7], "group_size": 2},
    {"pg_name": "6", "pg_desc": "mesh_dp_shard", "ranks": [1, 3], "group_size": 2},
    {"pg_name": "10", "pg_desc": "mesh_tp", "ranks": [2, 3], "group_size": 2},
]
"""Of rank 3 of a DeviceMesh of 2 × 2 × 2, as torch 2.13 lists them."""
FACTS = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": GROUPS}}


@pytest.mark.checklist("A7", "B15", "C6", "D18")
def test_the_groups_of_a_device_mesh() -> None:
    """Its dimensions are the sizes; every group has its kind and its ranks."""
    found = of_torch(FACTS)
    assert found["sizes"] == {"pipeline": 2, "data": 2, "tensor": 2}
    assert [(group["kind"], group["ranks"]) for group in found["groups"]] == [
        ("all", list(range(8))),
        ("pipeline", [3, 7]),
        ("data", [1, 3]),
        ("tensor", [2, 3]),
    ]
    text = str(layout_of(FACTS))
    assert (
        text
        == "pipeline 2 × data 2 × tensor 2 (torch); rank 3 is in mesh_pp [3, 7], mesh_dp_shard [1, 3], mesh_tp [2, 3]"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mesh_tp", "tensor"), ("dp_replicate", "data"), ("pp-stage", "pipeline"), ("cp", "context"), ("other", "other")],
)
def test_kinds(name: str, kind: str) -> None:
    """By the words that programs use; another name stays as it is."""
    assert kind_of(name) == kind


@pytest.mark.checklist("A7", "D18")
def test_declared_layouts() -> None:
    """Sizes alone, or with groups and sharding; dimensions of one kind are multiplied; what is no size, sharding or layout is none."""
    assert of_declared({"dp": 2, "tensor": 4, "pp": "two"})["sizes"] == {"data": 2, "tensor": 4}
    whole = {"sizes": {"data": 2}, "groups": [{"name": "a", "ranks": [0, 1]}], "sharding": {"embedding": "rows"}}
    assert {key: of_declared(whole)[key] for key in whole} == whole
    odd = {"sizes": {"replicate": 2, "shard": 4}, "sharding": "zero3", "groups": 4}
    assert of_declared(odd) == {"from": ["declared"], "sizes": {"data": 8}, "groups": [], "sharding": {}}
    assert of_declared("data 2") == {} and with_layout({"model": "m"}) == {"model": "m"}
    declared = with_layout({DECLARED: {"data": 2, "tensor": 4}})
    assert str(layout_of(declared)) == "data 2 × tensor 4 (declared)"
    assert with_layout(declared)[DECLARED]["sizes"] == {"data": 2, "tensor": 4}
    problem = "the sizes make 3 ranks, and the job has 8"
    found = layout_now({"sizes": {"data": 3}, "groups": []})
    assert "problem" not in found
    assert str(layout_of({DECLARED: {**found, "problem": problem}})) == f"data 3 (declared); {problem}"


def test_each_dimension_counts_once() -> None:
    """A second mesh with a dimension of the same name, and one that is flattened out of two, divide the job no further."""
    again = {"pg_name": "12", "pg_desc": "mesh_tp", "ranks": [2, 3], "group_size": 2}
    context = {"pg_name": "13", "pg_desc": "mesh_cp", "ranks": [3, 5], "group_size": 2}
    flat = {"pg_name": "14", "pg_desc": "mesh_tp_cp", "ranks": [2, 3, 4, 5], "group_size": 4}
    facts = {"distributedInfo": {"rank": 3, "world_size": 16, "pg_config": [*GROUPS, again, context, flat]}}
    assert of_torch(facts)["sizes"] == {"pipeline": 2, "data": 2, "tensor": 2, "context": 2}


def test_a_dimension_of_one_rank_divides_nothing() -> None:
    """torch makes no group for the other dimension of such a mesh, which covers all ranks."""
    alone = {"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [3], "group_size": 1}
    assert of_torch({"distributedInfo": {"rank": 3, "world_size": 8, "pg_config": [alone]}})["sizes"] == {}


@pytest.mark.parametrize(
    "metadata", [{}, {DECLARED: "data"}, {DECLARED: {"sizes": {"data": "x"}}}, {"distributedInfo": {"rank": 0}}]
)
def test_no_layout(metadata: dict[str, Any]) -> None:
    """Something else under that name is none, nor is a job with one group of all ranks."""
    assert layout_of(metadata) is None


@pytest.mark.checklist("A7", "B15", "C6", "D18")
@pytest.mark.parametrize(
    ("mode", "stages", "sizes"),
    [
        ("stand_alone", 1, {}),
        ("data_parallel", 1, {"data": 8}),
        ("semi_auto_parallel", 2, {"pipeline": 2, "data and tensor": 4}),
    ],
)
def test_mindspores_context(mode: str, stages: int, sizes: dict[str, int]) -> None:
    """Its stages, and its devices for each; what it does not know is named with the reason."""
    values = {"parallel_mode": mode, "device_num": 8, "pipeline_stages": stages, "dataset_strategy": "full_batch"}

    def get(name: str) -> Any:
        if name not in values:
            raise ValueError(f"no {name}")
        return values[name]

    found = of_mindspore(SimpleNamespace(context=SimpleNamespace(get_auto_parallel_context=get)))
    assert found["sizes"] == sizes
    assert found["sharding"]["dataset_strategy"] == "full_batch"
    assert found["sharding"]["search_mode"] == "not known: no search_mode"
