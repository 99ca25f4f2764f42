"""The signal `loader`: torch's DataLoaders."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from stepscope.backends.torch.functions import ReplacesTorch
from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.code_places import place_of, qualified_name
from stepscope.runtime.lifecycle import join
from stepscope.runtime.observers import observing

MOST_WRAPPERS = 8
"""Data sets around data sets, such as `Subset`, that are looked through."""

_MOST_OF_INDEX = 64
"""Characters of the index of an item, where it is no number."""


class Loader(ReplacesTorch):
    """Facts of a DataLoader where its iteration begins, how many batches were ready at each fetch, and batches of workers."""

    signal = "loader"
    module = "torch.utils.data.dataloader"

    def __init__(self) -> None:
        super().__init__()
        self.workers_join = False
        """Whether workers join the session of the process that started them, by themselves."""
        self._joined_pid = 0

    def replace_all(self) -> None:
        module: Any = sys.modules[self.module]
        self.replace("__iter__", self._around_iter, module.DataLoader)
        self.replace("_next_data", self._around_next, module._MultiProcessingDataLoaderIter)
        fetch: Any = sys.modules["torch.utils.data._utils.fetch"]
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            self.replace("fetch", self._around_fetch, getattr(fetch, name))

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if _core.recording() & _core.RECORD_EVENTS:
                _core.instant("DataLoader", category="loader", **facts_of(loader))
                # An iterator that is there has workers that persist.
                if loader.num_workers and getattr(loader, "_iterator", None) is None:
                    with _core.span("start workers", category="dataloader"):
                        return self._start_workers(original, loader)
            return original(loader)

        return __iter__

    def _start_workers(self, original: Callable[..., Any], loader: Any) -> Any:
        if not self.workers_join or _forks(loader):
            return original(loader)
        init_fn = loader.worker_init_fn
        loader.worker_init_fn = JoinFirst(init_fn)
        try:
            return original(loader)
        finally:
            loader.worker_init_fn = init_fn

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_data(iterator: Any) -> Any:
            if _core.recording() & _core.RECORD_EVENTS:
                try:
                    ready = iterator._data_queue.qsize()
                    ready += sum(len(info) == 2 for info in iterator._task_info.values())
                    _core.counter("loader queue", ready, category="loader")
                except (AttributeError, NotImplementedError, OSError, TypeError) as error:
                    self.note = f"how many batches are ready is not known: {error_text(error)}"
            return original(iterator)

        return _next_data

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        worker: Any = sys.modules["torch.utils.data._utils.worker"]

        def fetch(fetcher: Any, index: Any) -> Any:
            if worker.get_worker_info() is None:
                return original(fetcher, index)
            if self.workers_join and self._joined_pid != os.getpid():
                self._joined_pid = os.getpid()
                join.join_unless_own()
            items = len(index) if hasattr(index, "__len__") else 1
            used: dict[str, float] = {}  # the span writes down what is in it, and in `slowest`, at its end
            if items < 2 or not _fetches_items(fetcher):
                with _core.span("fetch", category="loader", items=items, used=used), _ProcessorTime(used):
                    return original(fetcher, index)
            slowest: dict[str, Any] = {}
            dataset, fetcher.dataset = fetcher.dataset, _Timed(fetcher.dataset, slowest)
            span = _core.span("fetch", category="loader", items=items, used=used, slowest=slowest)
            try:
                with span, _ProcessorTime(used):
                    return original(fetcher, index)
            finally:
                fetcher.dataset = dataset

        return fetch


class _ProcessorTime:
    """Notes how long all threads of this process run meanwhile: those of a data set that decodes in threads count as well."""

    def __init__(self, used: dict[str, float]) -> None:
        self._used = used

    def __enter__(self) -> None:
        self._begin = time.process_time_ns()

    def __exit__(self, *_: object) -> None:
        self._used["processor_ms"] = (time.process_time_ns() - self._begin) / 1e6


class _Timed:
    """Takes the place of a data set while a batch is made: notes its slowest item, by its index, and how long that took."""

    def __init__(self, dataset: Any, slowest: dict[str, Any]) -> None:
        self._dataset = dataset
        self._slowest = slowest

    def __getitem__(self, index: Any) -> Any:
        begin = _core.now()
        item = self._dataset[index]
        took = (_core.now() - begin) / 1e6
        if took > self._slowest.get("ms", -1.0):
            self._slowest.update(ms=took, index=index if isinstance(index, int) else str(index)[:_MOST_OF_INDEX])
        return item


def _fetches_items(fetcher: Any) -> bool:
    """True if it makes batches of a data set's items, one after the other, as `_MapDatasetFetcher` does where there is no
    `__getitems__`."""
    dataset = getattr(fetcher, "dataset", None)
    by_index = hasattr(dataset, "__getitem__") and not hasattr(fetcher, "dataset_iter")
    return by_index and bool(getattr(fetcher, "auto_collation", False)) and not getattr(dataset, "__getitems__", None)


class JoinFirst:
    """The first call of a worker that is not forked: the worker joins, records its batches, and calls `init_fn`.

    Args:
        init_fn: the loader's `worker_init_fn`.
    """

    def __init__(self, init_fn: Callable[[int], None] | None) -> None:
        self.init_fn = init_fn

    def __call__(self, number: int) -> None:
        """Is called in a worker, with its number."""
        LOADER.workers_join = True
        join.join_unless_own()
        LOADER.begin()
        if self.init_fn is not None:
            self.init_fn(number)


def _forks(loader: Any) -> bool:
    """True if its workers are forked, and so have all that is replaced here."""
    context: Any = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")


def facts_of(loader: Any) -> dict[str, Any]:
    """The facts of a DataLoader that rules read."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    for _ in range(MOST_WRAPPERS):
        inner = getattr(dataset, "dataset", None) or next(iter(getattr(dataset, "datasets", None) or ()), None)
        if inner is None or not type(dataset).__module__.startswith("torch.utils.data"):
            break
        dataset = inner
    kind = cast(Any, type(dataset))
    batch = loader.batch_size
    if batch is None:
        batch = getattr(loader.batch_sampler, "batch_size", None)
    return {
        "workers": loader.num_workers,
        "prefetch": loader.prefetch_factor,
        "batch": batch,
        "batches": _batches(loader),
        "pin_memory": loader.pin_memory,
        "persistent": loader.persistent_workers,
        "dataset": qualified_name(kind),
        "place": place_of(_function(kind, "__getitem__", "__getitems__", "__iter__")),
        "collate": qualified_name(collate),
        "collate_place": place_of(collate),
    }


def _batches(loader: Any) -> int | None:
    """How many batches a pass over the data has; `None` if the loader does not know it. An iterable data set is not asked: torch
    would compare its answer to the batches that come."""
    try:
        return len(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    except Exception:  # of the program's own sampler, or there is no length
        return None


def _function(kind: type, *names: str) -> object:
    """The first of these methods that a class, or a base of it that is the program's, defines."""
    for owner in kind.__mro__:
        found = [vars(owner)[name] for name in names if name in vars(owner)]
        if found:
            return found[0]
    return None


LOADER = Loader()
observing.add(LOADER)
