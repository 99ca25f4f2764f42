"""How a job is divided among its ranks: data, tensor and pipeline parallelism, and the groups of ranks.

The facts are what torch.distributed knows of its process groups, of which a `DeviceMesh` makes one for each of its dimensions, named
`mesh_<dimension>`; what MindSpore's parallel context says; and what the program declares.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final, cast

MAX_READINGS = 512
"""Readings that are remembered."""


class GroupReadings:
    """The readings of this process. A program may destroy its process group long before a window is exported."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=MAX_READINGS)
        self.problem = ""
        """Facts that this version of torch does not have; empty if it has all."""

    def record(self, at: int) -> None:
        """Reads now, as a window begins or ends at this time, in ns; on the thread that trains."""
        self._readings.append((at, self.read()))

    def of_window(self, end_ns: int) -> Mapping[str, Any]:
        """The groups at the end of the window, or else at its begin; if neither is known, those of now."""
        readings = [facts for at, facts in list(self._readings) if at <= end_ns][-2:]
        return next((facts for facts in reversed(readings) if facts), {} if readings else self.read())

    def read(self) -> Mapping[str, Any]:
        """Reads the groups in the form of torch's traces, by which tools tell ranks apart; empty without a group."""
        dist: Any = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return {}
        facts: dict[str, Any] = {}
        try:
            facts["backend"] = dist.get_backend()
            facts["rank"] = dist.get_rank()
            facts["world_size"] = dist.get_world_size()
            facts["pg_count"] = dist.get_pg_count()
            # The only place that needs what is private in torch.distributed.
            facts["pg_config"] = json.loads(json.dumps(dist.distributed_c10d._world.pg_config_info, default=str))
        except Exception as error:
            names = ", ".join(facts) or "nothing"
            self.problem = f"traces have process groups {names} only, not all: {type(error).__name__}: {error}"
        return {"distributedInfo": facts}


groups = GroupReadings()
"""The groups of this process."""


DECLARED: Final = "parallel_layout"
"""Key of the run's metadata with the layout: what the program declares there goes before what is found."""
KINDS: Final[Mapping[str, frozenset[str]]] = {
    "data": frozenset(("data", "dp", "ddp", "fsdp", "hsdp", "replicate", "shard", "zero")),
    "tensor": frozenset(("tensor", "tp", "mp", "model", "col", "row")),
    "pipeline": frozenset(("pipeline", "pp", "pipe", "stage", "stages")),
    "context": frozenset(("context", "cp", "sp", "sequence", "seq")),
    "expert": frozenset(("expert", "ep", "moe")),
}
"""Kinds of parallelism, with the words by which programs name their dimensions."""
MESH: Final = "mesh_"
"""Prefix of torch's descriptions of the groups of a `DeviceMesh`."""
NOT_KNOWN: Final = "not known: "
"""Begins the text that stands for a value which could not be read; the reason follows."""
CONTEXT: Final = (
    "parallel_mode",
    "device_num",
    "pipeline_stages",
    "gradients_mean",
    "full_batch",
    "dataset_strategy",
    "enable_parallel_optimizer",
    "search_mode",
    "strategy_ckpt_load_file",
    "strategy_ckpt_save_file",
)
"""Values of MindSpore's parallel context that are recorded."""


def kind_of(name: str) -> str:
    """The kind of parallelism of a dimension or group by its name; the name itself if it is no word that is known."""
    words = re.split(r"[^a-z]+", name.lower().removeprefix(MESH))
    return next((kind for kind, words_of_kind in KINDS.items() if words_of_kind & set(words)), name.removeprefix(MESH))


def of_torch(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The layout by torch's process groups, as `GroupReadings.read` returns them; empty without any.

    A dimension of a `DeviceMesh` that covers all ranks has no group of its own, and so no size: of one with several dimensions the
    others have one rank each.
    """
    info: Mapping[str, Any] = facts.get("distributedInfo") or {}
    if not info:
        return {}
    found: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    counted: set[str] = set()
    world = int(info.get("world_size", 1))
    configured = [*cast(Iterable[Mapping[str, Any]], info.get("pg_config") or ())]
    meshes = {name for each in configured if (name := _name_of(each)).startswith(MESH)}
    for each in configured:
        name = _name_of(each)
        ranks = list(each.get("ranks") or range(int(each.get("group_size", world))))
        found.append({"name": name, "kind": "all" if len(ranks) == world else kind_of(name), "ranks": ranks})
        # A second mesh may have a dimension of the same name; `mesh_dp_cp` beside `mesh_dp` and `mesh_cp` is both, flattened.
        words = name.removeprefix(MESH).split("_")
        flattened = len(words) > 1 and all(MESH + word in meshes for word in words)
        if name in meshes and name not in counted and not flattened:
            counted.add(name)
            if len(ranks) > 1:
                kind = kind_of(name)
                sizes[kind] = sizes.get(kind, 1) * len(ranks)
    return {"from": ["torch"], "rank": info.get("rank"), "world_size": world, "sizes": sizes, "groups": found}


def _name_of(group: Mapping[str, Any]) -> str:
    return str(group.get("pg_desc") or group.get("pg_name"))


def of_mindspore(mindspore: Any) -> dict[str, Any]:
    """The layout by MindSpore's parallel context."""
    sharding: dict[str, Any] = {}
    for name in CONTEXT:
        try:
            sharding[name] = mindspore.context.get_auto_parallel_context(name)
        except (AttributeError, KeyError, RuntimeError, ValueError) as error:
            sharding[name] = f"{NOT_KNOWN}{error}"
    devices, stages = (sharding[name] for name in ("device_num", "pipeline_stages"))
    sizes: dict[str, int] = {}
    alone = sharding["parallel_mode"] == "stand_alone"
    if isinstance(devices, int) and isinstance(stages, int) and stages > 0 and devices > 1 and not alone:
        sizes = {"pipeline": stages} if stages > 1 else {}
        each = devices // stages
        if sharding["parallel_mode"] == "data_parallel":
            sizes["data"] = each
        elif each > 1:
            sizes["data and tensor"] = each  # which of both an operator has, MindSpore decides for each
    return {"from": ["MindSpore"], "sizes": sizes, "groups": [], "sharding": sharding}


def layout_now(declared: Any = None) -> dict[str, Any]:
    """The layout of this process as far as it is known: what is declared goes before what torch knows, and that before MindSpore.

    Args:
        declared: sizes by kind or by any name, such as `{"data": 2, "tensor": 4}`; or an object with `sizes`, `groups`, `sharding`.

    Returns:
        `from`: who says it; `sizes` by kind; `groups`, each with `name`, `kind` and `ranks`; `sharding`; and, where it is so, `problem`.
        Empty if nothing is known.
    """
    mindspore: Any = sys.modules.get("mindspore")
    parts = [of_declared(declared), of_torch(groups.read())]
    if mindspore is not None and hasattr(mindspore, "context"):
        parts.append(of_mindspore(mindspore))
    parts = [part for part in parts if part.get("sizes") or part.get("groups") or part.get("sharding")]
    if not parts:
        return {}
    whole: dict[str, Any] = {"from": [], "sizes": {}, "groups": [], "sharding": {}}
    for part in parts:
        whole["from"] += part["from"]
        for name in ("sizes", "groups", "sharding"):
            whole[name] = whole[name] or part.get(name) or whole[name]
        for name in ("rank", "world_size"):
            if part.get(name) is not None:
                whole.setdefault(name, part[name])
    product = prod(whole["sizes"].values())
    if whole["sizes"] and whole.get("world_size", product) != product:
        whole["problem"] = f"the sizes make {product} ranks, and the job has {whole['world_size']}"
    return whole


def with_layout(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata of a run, with the layout if anything is known of it and the job has several ranks."""
    layout = layout_now(metadata.get(DECLARED))
    return {**metadata, DECLARED: layout} if layout.get("sizes") or len(layout.get("groups", ())) > 1 else metadata


def of_declared(declared: Any) -> dict[str, Any]:
    """The layout that a program declares, in the form of the others; empty if it declares none."""
    if not isinstance(declared, Mapping):
        return {}
    layout = cast(Mapping[str, Any], declared)
    sizes: Any = layout.get(
        "sizes", {name: size for name, size in layout.items() if name not in ("groups", "sharding")}
    )
    if not isinstance(sizes, Mapping):
        sizes = {}
    whole: dict[str, int] = {}
    for name, size in cast(Mapping[str, Any], sizes).items():
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            kind = kind_of(str(name))
            whole[kind] = whole.get(kind, 1) * size
    groups, sharding = layout.get("groups"), layout.get("sharding")
    return {
        "from": ["declared"],
        "sizes": whole,
        "groups": list(cast(Sequence[Any], groups)) if isinstance(groups, list | tuple) else [],
        "sharding": dict(cast(Mapping[str, Any], sharding)) if isinstance(sharding, Mapping) else {},
    }
