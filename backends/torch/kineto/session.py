"""Kineto's recording, which is one for the process, shared by the profilers of one thread."""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.backends.torch.importing import private
from stepscope.backends.torch.kineto.slot import OPERATOR_RUNS, PROGRAM, slot
from stepscope.backends.torch.kineto.worker import FinishedTrace, SharedResult
from stepscope.backends.torch.settings import DEVICES, TorchSettings, device_is_there
from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import clock
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.loop_threads.loop_thread import own_threads
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import RLock, get_ident

if TYPE_CHECKING:
    from stepscope.backends.torch.kineto.mode import KinetoMode

ELSEWHERE = "another profiler of this process records with kineto on another thread, and a process has one recording"
ROBBED = "the program's own torch profiler recorded on another thread, and a process has one recording of kineto"
LOST = "somebody else ended our recording, or took torch's profiler from it"
_SLACK_NS = 1_000_000
"""ns by which the begin of a recording may lie outside of the call that began it: some versions of torch round it."""


class KinetoSession:
    """The recording and the modes that share it.

    Two recordings at once crash kineto. So a second profiler on the same thread joins the first: the recording is
    broken off where one leaves, or wants more than is recorded, and begun again for those that stay; each gets each
    part. Calls of torch across such a break are missing for those that stay.

    A profiler of torch that the program starts goes first. On this thread the recording is broken off for it, and goes
    on after it. On another thread it takes kineto from us, which cannot be ended from there: the part is lost.

    All calls but `forget`, `vacate` and `reoccupy` come from the thread that records.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._pid = os.getpid()
        self._thread = 0
        self._warm: list[KinetoMode] = []
        self._modes: list[KinetoMode] = []
        self._profile: Any = None
        self._wants = TorchSettings()
        self._recording = False
        self._robbed = False
        """Whether kineto has been taken for a recording on another thread since ours began."""
        self._stuck: Any = None
        """A profile of ours in torch's slot whose recording is lost, and that could not be ended yet."""
        self._began_ns = (0, 0)
        """Wall time right before and after the recording began."""
        self._excluded: frozenset[tuple[int, str]] = frozenset()
        self._anchor: ClockAnchor | None = None
        self.records_device = False
        """Whether an accelerator is recorded now, on whatever thread."""
        self.all_threads = False
        """Whether torch records every thread (`profile_all_threads`). It is in no thread's slot then, and its own question
        says that it is off. Any thread may end it, and begin it again."""
        self._had_all_threads = False
        """The same, of the recording that was broken off for a profiler of the program."""

    @property
    def here(self) -> bool:
        """True if it records on the caller's thread."""
        return self._recording and self._thread == get_ident()

    def warm_up_for(self, mode: KinetoMode) -> str:
        """Warms up for a mode that will enter. Returns what kept it from that, empty for nothing."""
        with self._lock:
            if not self._mine():
                return ELSEWHERE
            problem = "" if self._profile is not None or self._occupied() else self._make(mode.wants)
            if not problem:
                self._warm.append(mode)
            self._update_thread()
            return problem

    def record_for(self, mode: KinetoMode) -> str:
        """Records for a mode from now on, or as soon as torch's slot is free. Returns what keeps it from both."""
        with self._lock:
            if not self._mine():
                return ELSEWHERE
            if mode in self._warm:
                self._warm.remove(mode)
            problem = ""
            if self._recording and self._wants.covers(mode.wants):
                self._modes.append(mode)
            else:
                if self._recording:
                    self._deliver(clock.now())
                self._modes.append(mode)
                problem = self._begin()
                if problem:
                    self._modes.remove(mode)
                    if self._modes:
                        self._begin_again()
            self._update_thread()
            return problem

    def stop_for(self, mode: KinetoMode, at: int) -> None:
        """Delivers all up to `at` to a mode, and stops recording for it."""
        with self._lock:
            if mode not in self._modes:
                return
            if self._recording:
                self._deliver(at)
            self._modes.remove(mode)
            self._had_all_threads = False
            if self._modes:
                self._begin_again()
            self._update_thread()

    def cancel_warm_up(self, mode: KinetoMode) -> None:
        """A mode that warmed up will not record. torch has no way back but to record, and to throw it away."""
        with self._lock:
            if mode not in self._warm:
                return
            self._warm.remove(mode)
            if not self._warm and not self._recording and self._profile is not None and not self._occupied():
                if not self._start():
                    self._end()
            self._update_thread()

    def forget(self, mode: KinetoMode) -> str:
        """The thread that records has ended, with a mode for which recording was not stopped. From any thread.

        Returns:
            torch's error at the end; empty for none.
        """
        with self._lock:
            self._warm = [other for other in self._warm if other is not mode]
            if mode not in self._modes:
                return ""
            self._modes.remove(mode)
            if self._modes:
                return ""
            if self.all_threads:
                slot.set_all_threads(False)
            self._recording = self.records_device = self._robbed = self.all_threads = False
            self._profile = self._stuck = None
            try:
                if not slot.is_occupied:  # else that would end what this thread has in its slot
                    slot.empty()
            except (RuntimeError, BackendError) as error:
                return f"torch's profiler did not end: {first_line(error)}"
            finally:
                self._update_thread()
            return ""

    # Occupant

    def vacate(self, kineto: bool) -> None:
        """Breaks off for a profiler of the program."""
        if os.getpid() != self._pid:
            return  # torch's state is the parent's
        with self._lock:
            if self._thread == get_ident() or self.all_threads:
                if self._recording:
                    self._had_all_threads = self.all_threads
                    now = clock.now()
                    self._deliver(now)
                    self._lack(now, PROGRAM)
                self.free()
            if kineto:
                if self._recording:
                    self._robbed = True
                else:
                    self._profile = None  # what was prepared is replaced

    @property
    def must_stay(self) -> bool:
        """True if it records on the calling thread."""
        return self._recording and self._thread == get_ident()

    def reoccupy(self) -> None:
        """Continues for the modes that wait."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._modes and not self._recording and (self._thread == get_ident() or self._had_all_threads):
                self._begin_again()

    def toggle(self, enable: bool, activities: frozenset[str]) -> bool:
        """Switches kinds of activities off and on again, for everybody who shares the recording; False elsewhere."""
        if not self.here:
            return False
        torch: Any = import_module("torch")
        return _toggle(enable, {getattr(torch.profiler.ProfilerActivity, name) for name in activities})

    def _mine(self) -> bool:
        if self._stuck is not None and self._thread not in (0, get_ident()):
            if any(thread.ident == self._thread for thread in threading.enumerate()):
                return False
            self._stuck = None  # it ended with its thread
        return self._thread in (0, get_ident()) or not (self._warm or self._modes)

    def _update_thread(self) -> None:
        used = self._warm or self._modes or self._stuck is not None
        self._thread = get_ident() if used else 0

    def _occupied(self) -> str:
        """The reason why torch's slot, or kineto, cannot be used now; empty if it can."""
        if not self.free() or slot.kineto_in_use:
            return PROGRAM
        for occupant in slot.occupants:
            if slot.emits and occupant is not self:
                occupant.reoccupy()  # it may have had no way to end
        if slot.emits:
            return "another profile on this thread records operators live, and torch has room for one"
        if slot.is_occupied:
            return PROGRAM
        return OPERATOR_RUNS if slot.operator_runs else ""

    def free(self) -> bool:
        """Ends a recording of this thread that was lost to another one, if there is such and that one's has ended."""
        if self._thread != get_ident():
            return True
        if self._stuck is not None and not slot.kineto_in_use:
            profile, self._stuck = self._stuck, None
            _occupy_kineto()
            _refusal("stop", lambda: profile.__exit__(None, None, None))
        return self._stuck is None

    def _union(self) -> TorchSettings:
        wants = [mode.wants for mode in self._modes]
        union = wants[0]
        for other in wants[1:]:
            union = union.together(other)
        return union

    def _make(self, wants: TorchSettings) -> str:
        """Makes torch's profiler, and warms it up."""
        torch: Any = import_module("torch")
        profiler: Any = import_module("torch.autograd.profiler")
        arguments: dict[str, Any] = {"activity_filters": wants.filters} if wants.filters else {}
        profile = profiler.profile(
            use_kineto=True,
            use_cpu="CPU" in wants.activities if wants.activities else True,
            use_device=_find_device(wants),
            record_shapes=wants.record_shapes,
            profile_memory=wants.profile_memory,
            with_stack=wants.with_stack,
            with_flops=wants.with_flops,
            with_modules=wants.with_modules,
            experimental_config=_config(torch, wants),
            **arguments,
        )
        # The first time torch starts a thread for good, which is to take none of the program's signals.
        problem = _refusal("prepare", lambda: _core.without_signals(private(profile, "_prepare_trace")))
        if not problem:
            self._profile, self._wants = profile, wants
        return problem

    def _begin(self) -> str:
        """Records for all modes, or as soon as the slot is free. Returns why torch does not, empty if it does."""
        why = self._occupied()
        if why:
            self._lack(clock.now(), why)
            return ""
        wants = self._union()
        if self._profile is not None and not self._wants.covers(wants):
            self._profile = None  # torch was warmed up for less
        problem = ("" if self._profile is not None else self._make(wants)) or self._start()
        if not problem:
            now = clock.now()
            for mode in self._modes:
                mode.gaps.end(now)
        return problem

    def _start(self) -> str:
        profile: Any = self._profile
        if self._wants.with_stack:
            _await_births()
        before = time.time_ns()
        problem = _refusal("start", lambda: private(profile, "_start_trace")())
        if problem:
            self._profile = None
            return problem
        self._began_ns = before, time.time_ns()
        own = exclude_own_threads() if self._wants.with_stack else frozenset[int]()
        self._pid = os.getpid()
        self._recording = True
        self._robbed = False
        self.all_threads = not slot.has_profiler("KINETO")
        if self.all_threads:
            slot.set_all_threads(True)
        live = slot.emitting if self.all_threads else ()  # operators that the recorder has as well
        self._excluded = frozenset(
            [(thread, "python_function") for thread in own]
            + [(thread, category) for thread in live for category in ("cpu_op", "user_annotation")]
        )
        self.records_device = profile.use_device is not None
        self._anchor = ClockAnchor.read()
        return ""

    def _begin_again(self) -> None:
        if problem := self._begin():
            self._lack(clock.now(), problem)

    def _lack(self, at: int, why: str) -> None:
        """Begins a gap in every mode: from this time no recording goes on."""
        for mode in self._modes:
            mode.gaps.begin(at, why)

    def _deliver(self, at: int) -> None:
        """Ends the recording, and gives everybody what it holds."""
        assert self._anchor is not None
        since = self._anchor.monotonic_ns
        anchors = self._anchor, ClockAnchor.read()
        robbed, device = self._robbed, self.records_device
        result, problem = self._end()
        shared = SharedResult(result, len(self._modes))
        for mode in self._modes:
            if result is None:
                mode.gaps.add(since, at, problem)
            else:
                if robbed and device:
                    mode.gaps.add(since, at, f"{ROBBED}, which has what the device did")
                flops = mode.wants.with_flops
                mode.add(FinishedTrace(shared, at, anchors, flops, since, self._excluded))

    def _end(self) -> tuple[Any, str]:
        """Stops torch's profiler: what it recorded, or why there is nothing."""
        profile, self._profile = self._profile, None
        robbed, all_threads = self._robbed, self.all_threads
        if all_threads:
            slot.set_all_threads(False)
        self._recording = self.records_device = self._robbed = self.all_threads = False
        if not (all_threads or slot.has_profiler("KINETO")):
            return None, LOST
        if robbed:
            if slot.kineto_in_use:  # ending ours now would end that recording, and crash the program at its end
                self._stuck = profile
                if not slot.all_threads:  # else that would switch off the other recording
                    _toggle(False, {_cpu()})
                return None, ROBBED
            _occupy_kineto()
        problem = _refusal("stop", lambda: profile.__exit__(None, None, None))
        result = profile.kineto_results
        if not problem and not self._is_whole(result):
            problem = LOST
        return (None if problem else result), problem

    def _is_whole(self, result: Any) -> bool:
        """True if a result is of the recording that we began. torch crashes where an empty one is used."""
        before, after = self._began_ns
        return result is not None and before - _SLACK_NS <= result.trace_start_ns() <= after + _SLACK_NS


session = KinetoSession()
"""The session of this process."""
slot.occupants.append(session)


def _find_device(wants: TorchSettings) -> str | None:
    """The requested accelerator that exists here, as torch names it."""
    requested = (name for name in DEVICES if not wants.activities or name in wants.activities)
    return next((name.lower() for name in requested if device_is_there(name)), None)


def first_line(error: BaseException) -> str:
    """The text of an error, without torch's own stack."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _await_births() -> None:
    """Waits, a second at most, until no thread has just begun: torch's tracer of Python functions hooks into every thread,
    and one that it met half made was seen to crash. A profiler that starts makes some."""
    quiet, before = 0, set[int | None]()
    for _ in range(500):
        threads = threading.enumerate()
        now = {thread.ident for thread in threads}
        quiet = quiet + 1 if now == before and all(thread.is_alive() for thread in threads) else 0
        if quiet == 5:
            return
        before = now
        time.sleep(0.002)


def exclude_own_threads() -> frozenset[int]:
    """Has torch's tracer of Python functions, which has hooked into every thread, leave out those of the runtime. Returns their numbers in
    the system: the functions that they were in are recorded all the same."""
    threads = own_threads()
    _core.unprofile_threads({thread.ident for thread in threads if thread.ident is not None})
    # torch gives what a thread was inside of, and that has done nothing since, to a thread 0: ours are of that kind.
    return frozenset([0, *(thread.native_id for thread in threads if thread.native_id is not None)])


def _config(torch: Any, wants: TorchSettings) -> Any:
    """The user's, or the one that stops fastest: without torch's own post-processing, where nothing needs it."""
    if wants.experimental_config is not None:
        return wants.experimental_config
    make = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if make is None:
        return None
    if wants.with_stack or wants.with_flops:
        return make()
    try:
        return make(trace_only=True)
    except TypeError:
        return make()


def _refusal(what: str, call: Any) -> str:
    """Makes a call of torch's profiler; why torch refused, empty if it did not."""
    try:
        with slot.ours():
            call()
        if what != "prepare":
            slot.change()
    except (RuntimeError, AssertionError, ValueError, BackendError) as error:
        return f"torch's profiler did not {what}: {first_line(error)}"
    return ""


def _occupy_kineto() -> None:
    """Lets kineto record something, so that a profile which has lost kineto to another one can be ended.

    torch crashes when it stops kineto where that records nothing. Operators are not lost: torch itself keeps them until
    the end. The profile that is begun here ends with its thread.
    """

    def record() -> None:
        profile: Any = import_module("torch.autograd.profiler").profile(use_kineto=True)
        if not _refusal("start", lambda: private(profile, "_prepare_trace")()):
            _refusal("start", lambda: private(profile, "_start_trace")())

    BackgroundCall(record, name="stepscope-kineto-holder", elsewhere=True).result()


def _toggle(enable: bool, activities: set[Any]) -> bool:
    """Switches kinds of activities while kineto records; False where this version of torch cannot."""
    toggle = getattr(import_module("torch.autograd.profiler"), "_toggle_collection_dynamic", None)
    if toggle is not None:
        toggle(enable, activities)
    return toggle is not None


def _cpu() -> Any:
    return import_module("torch").profiler.ProfilerActivity.CPU
