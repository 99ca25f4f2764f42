"""`profile`: the class of MindSpore from 2.5 on."""

from __future__ import annotations

import os
from typing import Any

from stepscope.compat.mindspore.options.options import read_options
from stepscope.compat.mindspore.recording.recording import Recording
from stepscope.runtime.control.settings import Control
from stepscope.runtime.settings.arguments import got


class _ExperimentalConfig:
    """Further options of `profile`, as in MindSpore; checked by `profile`.

    Args: see `ProfilerOptions`.
    """

    def __init__(
        self,
        profiler_level: Any = "Level0",
        aic_metrics: Any = "AiCoreNone",
        l2_cache: bool = False,
        mstx: bool = False,
        data_simplification: bool = True,
        export_type: Any = None,
        mstx_domain_include: Any = None,
        mstx_domain_exclude: Any = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
        host_sys: Any = None,
    ) -> None:
        self.profiler_level = profiler_level
        self.aic_metrics = aic_metrics
        self.l2_cache = l2_cache
        self.mstx = mstx
        self.data_simplification = data_simplification
        self.export_type = export_type
        self.mstx_domain_include = mstx_domain_include
        self.mstx_domain_exclude = mstx_domain_exclude
        self.sys_io = sys_io
        self.sys_interconnection = sys_interconnection
        self.host_sys = host_sys

    def options(self) -> dict[str, Any]:
        """Its attributes by name, as `profile` reads them; one that may be left out has no `None`."""
        return {name: value for name, value in vars(self).items() if name != "export_type" or value is not None}


class profile(Recording):
    """Records the steps that a schedule asks for; a context manager, sync and async.

    Takes the arguments of `mindspore.profiler.profile`. `step()` is called at the end of each step; the first begins
    with `start()`. Leaving the context, or `stop()`, waits for the products that the handler makes.

    Raises:
        TypeError: for an argument of a wrong type; names it, its value and the type.
        ValueError: for a value out of its range, or one that needs another argument.
        ProfilerIOException: if it starts at once and nothing can be written to the handler's directory.
    """

    def __init__(
        self,
        activities: Any = None,
        with_stack: bool = False,
        profile_memory: bool = False,
        data_process: bool = False,
        parallel_strategy: bool = False,
        start_profile: bool = True,
        hbm_ddr: bool = False,
        pcie: bool = False,
        sync_enable: bool = True,
        record_shapes: bool = False,
        schedule: Any = None,
        on_trace_ready: Any = None,
        experimental_config: _ExperimentalConfig | None = None,
        *,
        control: str | os.PathLike[str] | Control | None = None,
    ) -> None:
        """
        Args:
            activities: see `ProfilerOptions`, which also has the others up to `record_shapes`.
            schedule: which steps are recorded; default: all, in one window.
            on_trace_ready: `tensorboard_trace_handler(...)`, which makes the products, or any callable.
            experimental_config: further options.
            control: ours: by which ways windows can be asked of the running profiler, as for `stepscope.trace`. Without
                a schedule nothing is recorded then but what is asked for.
        """
        if experimental_config is not None and not isinstance(experimental_config, _ExperimentalConfig):
            raise TypeError(f"profile: experimental_config must be a _ExperimentalConfig, {got(experimental_config)}")
        given: dict[str, Any] = {
            "activities": activities,
            "with_stack": with_stack,
            "profile_memory": profile_memory,
            "data_process": data_process,
            "parallel_strategy": parallel_strategy,
            "start_profile": start_profile,
            "hbm_ddr": hbm_ddr,
            "pcie": pcie,
            "sync_enable": sync_enable,
            "record_shapes": record_shapes,
            "output_path": None,
        }
        given |= {} if experimental_config is None else experimental_config.options()
        options = read_options(given, "profile")
        super().__init__(options, schedule, on_trace_ready, who="profile", strict_start=False, control=control)
        if options.start_profile:
            self._start()
