"""`Profiler`, the class of MindSpore up to 2.4, and `profile`, that of 2.5 and later."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.compat.mindspore.analysis import offline
from stepscope.compat.mindspore.analysis.analysis import Analysis
from stepscope.compat.mindspore.analysis.background import analyse_later
from stepscope.compat.mindspore.options.enums import AnalysisMode
from stepscope.compat.mindspore.options.options import checked, read_options
from stepscope.compat.mindspore.products.operators import OperatorRow, OperatorTable, find_operators, operators_as_json
from stepscope.compat.mindspore.recording.capture import analyse_captures
from stepscope.compat.mindspore.recording.recording import Recording, log
from stepscope.runtime.control.settings import Control
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import find_invalid_value, suggesting


class Profiler(Recording):
    """Records the training of this process; `stop()` or `analyse()` ends that.

    Takes the options of `mindspore.Profiler` by name, see `ProfilerOptions`, and `schedule` and `on_trace_ready`. Every
    start is a recording of its own, in a new directory; nothing that is there is overwritten.

    Raises:
        TypeError: for an option of a wrong type; names it, its value and the type.
        ValueError: for a value out of its range, or one that needs another option.
        RuntimeError: if MindSpore is set to a device that nobody knows.
        ProfilerIOException: if it starts at once and nothing can be written to `output_path`.
    """

    def __init__(
        self,
        *,
        schedule: Any = None,
        on_trace_ready: Any = None,
        control: str | os.PathLike[str] | Control | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            schedule: which steps are recorded, if `step()` is called at the end of each. Default: all.
            on_trace_ready: what happens with each window; default: nothing, until `analyse()`.
            control: ours: as for `stepscope.trace`; without a schedule only requested windows are recorded.
            options: see `ProfilerOptions`. The log names an unknown one, with the nearest that there is.
        """
        if options.get("output_path") is None:
            options["output_path"] = None  # the environment says, or the default
        elif os.environ.get("MS_DIAGNOSTIC_DATA_PATH"):
            log.warning("output_path is given, so MS_DIAGNOSTIC_DATA_PATH is not used")
        read = read_options(options, "Profiler")
        super().__init__(read, schedule, on_trace_ready, who="Profiler", strict_start=True, control=control)
        if read.start_profile and not read.analyse_only:
            self._start()

    @suggesting
    def analyse(
        self,
        offline_path: str | os.PathLike[str] | None = None,
        pretty: bool = False,
        step_list: Iterable[int] | None = None,
        mode: str | AnalysisMode = "sync",
    ) -> Analysis | None:
        """Stops recording if need be, and makes the products of every window that has none yet.

        Calling it again changes nothing and returns the same; other arguments make further products.

        Args:
            offline_path: analyse what is below this path instead, as `offline_analyse` does.
            pretty: write JSON over several lines.
            step_list: only these steps, in any order, with or without gaps. Those that were not recorded are in
                `Analysis.rejected` and in the log, with the nearest that was.
            mode: `sync` waits; `async` returns at once, and a background thread does the work.

        Returns:
            The result of each product; `None` with `async`. One that failed does not stop the others.

        Raises:
            TypeError, ValueError: if an argument is not what it should be.
        """
        steps = _read_step_list(step_list)
        checked("pretty", pretty, bool)
        waits = checked("mode", mode, AnalysisMode) is AnalysisMode.SYNC_MODE
        if offline_path is not None:
            if waits:
                return offline.analyse_below(Path(offline_path), self.options, pretty, steps)
            analyse_later(lambda: offline.analyse_below(Path(offline_path), self.options, pretty, steps))
            return None
        self._stop()
        return analyse_captures(self._captures, pretty=pretty, steps=steps, waits=waits)

    @classmethod
    @suggesting
    def offline_analyse(
        cls,
        path: str | os.PathLike[str],
        pretty: bool = False,
        step_list: Iterable[int] | None = None,
        data_simplification: bool = True,
        ascend_names: bool = False,
    ) -> Analysis:
        """Makes the products of what was recorded below a path, also by a process that was killed.

        Args:
            path: the directory of a window, or one above, such as the `output_path`.
            pretty, step_list: as for `analyse`.
            data_simplification: delete raw data when the products are complete.
            ascend_names: ours: put products into directories that end with `_ascend_ms`, where MindSpore's tools look for them.

        Returns:
            The products, and the directories that were passed over, with the reason for each.

        Raises:
            TypeError: if an argument is not what it should be.
            ProfilerDirNotFoundException: if there is no such directory.
            RuntimeError: if there is nothing to analyse; says why of every directory that was looked at.
        """
        checked("pretty", pretty, bool)
        options = read_options(
            {"data_simplification": data_simplification, "ascend_names": ascend_names}, "offline_analyse"
        )
        return offline.analyse_below(Path(path), options, pretty, _read_step_list(step_list))

    @suggesting
    def op_analyse(self, op_name: str | list[str], device_id: int | None = None) -> str:
        """How often operators ran and how long they took, for each shape of their inputs, as JSON.

        Args:
            op_name: kind or kinds of operators, such as `MatMul`; also the name of one.
            device_id: only those of this device. Default: all, and the host.

        Returns:
            An object: for each name a list of rows with `op_side`, `input_shape`, `op_occurrences`, `op_total_time(us)`
            and `op_avg_time(us)`; and `device_id`.

        Raises:
            TypeError: if an argument is not what it should be.
            RuntimeError: if no such operator was recorded; names the nearest.
        """
        names = [op_name] if isinstance(op_name, str) else op_name
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"op_name must be a str or a list of them, {got(op_name)}")
        if device_id is not None and (isinstance(device_id, bool) or not isinstance(device_id, int)):
            raise TypeError(f"device_id must be a whole number, {got(device_id)}")
        device = self.target.device_id if device_id is None else device_id
        return operators_as_json({name: self.operators(name, device_id=device_id) for name in names}, device)

    @suggesting
    def operators(
        self,
        op_name: str | None = None,
        *,
        device_id: int | None = None,
        shape: str | None = None,
        steps: Iterable[int] | None = None,
    ) -> tuple[OperatorRow, ...]:
        """The operators of all windows as data, the longest first.

        Args:
            op_name: kind or name. Default: all.
            device_id: only those of this device; the host's operators belong to the device of the process.
            shape: only those whose inputs have these shapes, as rows name them.
            steps: only those of these steps, which needs raw data.

        Raises:
            RuntimeError: if no operator of that name was recorded.
            FileNotFoundError: if raw data are needed and were deleted.
        """
        wanted, whole = _read_step_list(steps), OperatorTable()
        if self._capture is not None:
            raise ProfilerStateError("operators are known when recording has ended: call stop() or analyse() first")
        for window in self.windows:
            whole.merge(window.operators(wanted))
        return find_operators(whole.rows(), op_name, device_id, shape, self.target.device_id)


@dataclass(eq=False)
class _ExperimentalConfig:
    """Further options of `profile`, as in MindSpore; see `ProfilerOptions`. `profile` checks them."""

    profiler_level: Any = "Level0"
    aic_metrics: Any = "AiCoreNone"
    l2_cache: bool = False
    mstx: bool = False
    data_simplification: bool = True
    export_type: Any = None
    mstx_domain_include: Any = None
    mstx_domain_exclude: Any = None
    sys_io: bool = False
    sys_interconnection: bool = False
    host_sys: Any = None

    def options(self) -> dict[str, Any]:
        """Its attributes by name, as `profile` reads them; one that may be left out has no `None`."""
        return {name: value for name, value in vars(self).items() if name != "export_type" or value is not None}


setattr(_ExperimentalConfig, "__init__", suggesting(_ExperimentalConfig.__init__))  # noqa: B010  # a dataclass makes it


class profile(Recording):
    """Records the steps that a schedule asks for; a context manager, sync and async.

    Takes the arguments of `mindspore.profiler.profile`. `step()` is called at the end of each step; the first begins
    with `start()`. Leaving the context, or `stop()`, waits for the products that the handler makes.

    Raises:
        TypeError: for an argument of a wrong type; names it, its value and the type.
        ValueError: for a value out of its range, or one that needs another argument.
        ProfilerIOException: if it starts at once and nothing can be written to the handler's directory.
    """

    @suggesting
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
        profile_communication: bool = False,
        peak_flops: float | None = None,
        ascend_names: bool = False,
        overhead_budget: float | None = None,
        control: str | os.PathLike[str] | Control | None = None,
    ) -> None:
        """
        Args:
            activities: see `ProfilerOptions`, which also has the others up to `record_shapes`.
            schedule: which steps are recorded; default: all, in one window.
            on_trace_ready: `tensorboard_trace_handler(...)`, which makes the products, or any callable.
            experimental_config: further options.
            profile_communication, peak_flops, ascend_names, overhead_budget: ours: see `ProfilerOptions`.
            control: ours: as for `stepscope.trace`; without a schedule only requested windows are recorded.
        """
        if experimental_config is not None and not isinstance(experimental_config, _ExperimentalConfig):
            raise TypeError(f"profile: experimental_config must be a _ExperimentalConfig, {got(experimental_config)}")
        arguments: dict[str, Any] = {
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
            "profile_communication": profile_communication,
            "peak_flops": peak_flops,
            "ascend_names": ascend_names,
            "overhead_budget": overhead_budget,
            "output_path": None,
        }
        arguments |= {} if experimental_config is None else experimental_config.options()
        options = read_options(arguments, "profile")
        super().__init__(options, schedule, on_trace_ready, who="profile", strict_start=False, control=control)
        if options.start_profile:
            self._start()


def analyse(
    profiler_path: str | os.PathLike[str],
    max_process_number: int = 1,
    pretty: bool = False,
    step_list: Iterable[int] | None = None,
    data_simplification: bool = True,
) -> Analysis:
    """Does what `Profiler.offline_analyse` does; of `mindspore.profiler.profiler`.

    Args:
        profiler_path: as `path` there.
        max_process_number: has no effect: products are made in this process.
        pretty, step_list, data_simplification: as there.

    Raises:
        TypeError, RuntimeError: as there.
    """
    return Profiler.offline_analyse(profiler_path, pretty, step_list, data_simplification)


def _read_step_list(step_list: Any) -> tuple[int, ...] | None:
    """The steps in ascending order, each once; `None`, for all, stays.

    Raises:
        TypeError: if it is something else than an iterable of whole numbers; names what is wrong in it.
    """
    if step_list is None:
        return None
    try:
        steps: Any = step_list if isinstance(step_list, str | bytes) else list(step_list)
    except TypeError:
        steps = step_list
    invalid = find_invalid_value(steps, list[int], "step_list")
    if invalid is not None:
        raise TypeError(invalid.text)
    return tuple(sorted(set(steps)))
