"""`TorchBackend`: torch's operators, live through ITT, or with all their details through kineto."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Literal

import msgspec

from stepscope.backends.parallel_layout import groups
from stepscope.backends.torch.kineto.mode import KinetoMode
from stepscope.backends.torch.kineto.session import session
from stepscope.backends.torch.kineto.worker import Keeper
from stepscope.backends.torch.settings import SWITCHES, TorchSettings, read_activities
from stepscope.backends.torch.stream import StreamMode
from stepscope.runtime.errors import BackendError
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.settings.arguments import got, switch_argument
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.sources.sink import BackendReport, Sink

Mode = Literal["auto", "stream", "kineto"]


log = logging.getLogger("stepscope")


@functools.cache
def _warn_of_kineto(why: str) -> None:
    """Logs once for each reason why operators cost more than they need to."""
    log.warning(
        "torch's own profiler records its operators, with the same results, which costs several times as much: %s", why
    )


class TorchBackend:
    """Records torch's operators on the thread that calls `step()`, and on autograd's threads.

    In stream mode each operator is recorded as it ends, at about a quarter of a µs, and a window's end costs nothing.
    In kineto mode torch.profiler's engine records, with shapes, memory, stacks, FLOPs and devices; then a window's end
    costs the training thread some µs per operator, which the report states. A failure of torch in the state that
    it is in (out of memory, say) costs a window its operators, and is in the report. A profiler of torch that
    the program starts has torch's slot; operators are recorded again when it has ended.
    Backends on one thread share torch's engine: each gets all that it asks for, however their windows overlap.
    """

    thread_bound = True

    @suggesting
    def __init__(
        self,
        mode: Mode = "auto",
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        activities: Iterable[Any] | None = None,
        experimental_config: Any = None,
        name: str = "torch",
        keeper: Keeper | None = None,
    ) -> None:
        """
        Args:
            mode: `auto` takes `stream`, unless something is asked for that only kineto has, there is a GPU, or
                operators cannot arrive live in this process.
            record_shapes: keep shapes, strides and types of inputs.
            profile_memory: record allocations.
            with_stack: record Python functions, and operators' call stacks.
            with_flops: keep torch's estimates of floating-point operations, as argument `FLOPs`.
            with_modules: keep the hierarchy of TorchScript modules.
            activities: as for `torch.profiler.profile`.
            experimental_config: as for `torch.profiler.profile`; default: one that stops fastest.
            name: of this source in ledgers and reports.
            keeper: in kineto mode, who gets each finished recording as torch has it, on the backend's own thread.

        Raises:
            ValueError: if the mode is unknown, or it is `stream` and something is asked for that only kineto has.
            TypeError: if activities or `experimental_config` are not what torch knows as such.
        """
        if mode not in ("auto", "stream", "kineto"):
            raise ValueError(f"mode must be 'auto', 'stream' or 'kineto', got {mode!r}")
        # By its name: torch is not imported before `open`.
        kinds = [kind.__name__ for kind in type(experimental_config).__mro__]
        if experimental_config is not None and "_ExperimentalConfig" not in kinds:
            raise TypeError(
                f"experimental_config must be torch's _ExperimentalConfig, {got(experimental_config)}; leave it out for the default"
            )
        names, filters = read_activities(activities)
        self._settings = TorchSettings(
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            activities=names,
            filters=filters,
            experimental_config=experimental_config,
        )
        for flag in SWITCHES.values():
            switch_argument(flag, getattr(self._settings, flag))
        beyond = self._settings.beyond_stream
        if mode == "stream" and beyond:
            raise ValueError(f"{' and '.join(beyond)} cannot be had with mode='stream'; use mode='kineto'")
        self.name = name
        self._keeper = keeper
        self._wanted: Mode = mode
        self._mode: StreamMode | KinetoMode | None = None
        self._notes: list[str] = []

    def stream_only(self) -> None:
        """Leaves `auto` no choice but `stream`: kineto mode delivers when a window ends.

        Raises:
            ValueError: if something is asked for that only kineto has, or kineto itself.
        """
        beyond = self._settings.beyond_stream
        if self._wanted == "kineto" or beyond:
            wanted = " and ".join(beyond) or "mode='kineto'"
            raise ValueError(f"{wanted} of backend {self.name!r} delivers when a window ends; use mode='stream'")
        self._wanted = "stream"

    def open(self, sink: Sink) -> None:
        try:
            torch: Any = import_module("torch")
        except ImportError as error:
            raise BackendError(f"torch cannot be imported ({error}); install it, or leave TorchBackend out") from error
        if self._mode is not None:
            self._mode.abandon()
            self._mode = None
        self._notes = []
        if self._wanted == "stream":
            self._mode = StreamMode(sink)
        elif self._wanted == "kineto" or self._settings.beyond_stream or _has_device(torch) or session.here:
            self._mode = KinetoMode(self._settings, sink, self._keeper)
        else:
            try:
                self._mode = StreamMode(sink)
            except BackendError as error:
                self._notes.append(f"kineto mode was taken: {error}")
                _warn_of_kineto(str(error))
                self._mode = KinetoMode(self._settings, sink, self._keeper)

    @property
    def one_thread(self) -> bool:
        """Whether it records only its own thread, and the work that this gives to autograd's threads."""
        return self._mode is not None and self._mode.recording and not session.all_threads

    @property
    def beyond_stream(self) -> tuple[str, ...]:
        """The arguments that only kineto mode can serve."""
        return self._settings.beyond_stream

    def toggle(self, enable: bool, activities: Iterable[Any]) -> bool:
        """Switches activities off and on again inside of a window, on the thread that records.

        Args:
            enable: whether they are to be recorded from now on.
            activities: as for `torch.profiler.profile`.

        Returns:
            False if nothing came of it, as nothing is recorded on this thread now.

        Raises:
            TypeError: if activities are not what torch knows as such.
        """
        names, _ = read_activities(activities)
        return self._mode is not None and self._mode.toggle(enable, names)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._mode is None:
            return
        if before.records != after.records or before is ProfilerAction.RECORD_AND_SAVE:
            groups.record(at)
        self._mode.transition(before, after, at)

    def set_detail(self, detail: Detail) -> None:
        """Leaves out operators, or records them again. Kineto's next window is the first without."""
        if self._mode is not None:
            self._mode.set_detail(detail)

    def can_choose(self, what: str, on: bool) -> str | None:
        """Stacks, shapes, memory and the like can be chosen in kineto mode, window by window."""
        if what == "operators":
            return ""
        live = self._live
        if what == "shortest_us" and live is False:
            return (
                f"backend {self.name!r} records with kineto, which delivers all operators; make it with mode='stream'"
            )
        if what not in SWITCHES:
            return None
        if not live or not on:
            return ""
        return f"operators of backend {self.name!r} arrive live, which have no {what}; make it with mode='kineto'"

    @property
    def _live(self) -> bool | None:
        """Whether operators arrive live; `None`: not known before it is opened."""
        if self._mode is not None:
            return isinstance(self._mode, StreamMode)
        if self._wanted == "auto" and not self._settings.beyond_stream:
            return None
        return self._wanted == "stream"

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Switches stacks, shapes and the like on or off for windows that begin from now on."""
        if self._mode is not None:
            self._mode.choose(chosen)

    def orphaned(self) -> None:
        """The thread that records has ended: torch's state of that thread is released, on any thread."""
        if isinstance(self._mode, KinetoMode):
            self._mode.orphaned()

    async def aclose(self) -> None:
        # The mode is kept: what still records on the training thread is ended by the next call that comes from there.
        if self._mode is not None:
            await self._mode.aclose()

    def report(self) -> BackendReport:
        report = BackendReport() if self._mode is None else self._mode.report()
        notes = (*self._notes, groups.problem) if groups.problem else self._notes
        return msgspec.structs.replace(report, notes=(*notes, *report.notes))


def _has_device(torch: Any) -> bool:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    return bool(accelerator.is_available() if accelerator is not None else torch.cuda.is_available())
