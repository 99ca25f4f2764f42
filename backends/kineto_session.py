"""Kineto's recording, which is one for the process, shared by the profilers of one thread."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any, Protocol

from stepscope.backends.kineto_blocks import MARKER
from stepscope.backends.kineto_result import SharedResult
from stepscope.backends.kineto_worker import FinishedTrace
from stepscope.backends.torch_settings import TorchSettings
from stepscope.runtime import _core, clock
from stepscope.runtime.clock import ClockAnchor

_DEVICES = ("CUDA", "XPU", "MTIA", "HPU")
ELSEWHERE = "a window has no operators: another profiler of this process records with kineto on another thread"


class Member(Protocol):
    """Who takes part."""

    @property
    def wants(self) -> TorchSettings:
        """What it asks of torch now."""
        ...

    def take(self, trace: FinishedTrace) -> None:
        """Gets a stretch of the recording; those of one member do not overlap."""
        ...

    def lose(self, problem: str) -> None:
        """The recording has ended, and could not be begun again."""
        ...


class KinetoSession:
    """The recording and who shares it.

    Two recordings at once crash kineto. So a second profiler on the same thread joins the first: the recording is
    broken off where one leaves, or wants more than is recorded, and begun again for those that stay; each gets every
    stretch. What runs in torch across such a break is missing for those that stay.

    All calls but `forget` come from the thread that records.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = 0
        self._warm: list[Member] = []
        self._members: list[Member] = []
        self._profile: Any = None
        self._wants = TorchSettings()
        self._recording = False
        self._anchor: ClockAnchor | None = None
        self._brackets: list[tuple[int, int]] = []
        self.records_device = False
        """Whether an accelerator is recorded now, on whatever thread."""

    @property
    def here(self) -> bool:
        """Whether it records on the caller's thread."""
        return self._recording and self._thread == threading.get_ident()

    def prepare(self, member: Member) -> str:
        """Warms up for a member that will enter. Returns what kept it from that, empty for nothing."""
        with self._lock:
            if not self._mine():
                return ELSEWHERE
            problem = "" if self._profile is not None else self._make(member.wants)
            if not problem:
                self._warm.append(member)
            self._settle()
            return problem

    def enter(self, member: Member) -> str:
        """Records for a member from now on. Returns what kept it from that, empty for nothing."""
        with self._lock:
            if not self._mine():
                return ELSEWHERE
            if member in self._warm:
                self._warm.remove(member)
            wants = member.wants
            if self._recording and not self._wants.covers(wants):
                self._stretch(clock.now())
            problem = "" if self._recording else self._begin(wants)
            if problem and self._members:
                self._begin_again()
            if not problem:
                self._members.append(member)
                if not self._wants.covers(wants):  # torch was warmed up for less
                    problem = self._again(clock.now())
            self._settle()
            return problem

    def leave(self, member: Member, at: int) -> None:
        """Gives a member all up to `at`, and records for it no longer."""
        with self._lock:
            if member not in self._members:
                return
            self._stretch(at)
            self._members.remove(member)
            if self._members:
                self._begin_again()
            self._settle()

    def cool(self, member: Member) -> None:
        """A member that warmed up will not enter. torch has no way back but to record, and to throw it away."""
        with self._lock:
            if member not in self._warm:
                return
            self._warm.remove(member)
            if not self._warm and not self._recording and self._profile is not None and not self._begin(self._wants):
                self._end()
            self._settle()

    def forget(self, member: Member) -> str:
        """The thread that records has ended, with a member that did not leave. From any thread.

        Returns:
            What torch said when it was told to end, empty for nothing.
        """
        with self._lock:
            self._warm = [other for other in self._warm if other is not member]
            if member not in self._members:
                return ""
            self._members.remove(member)
            if self._members:
                return ""
            self._recording = self.records_device = False
            self._profile = None
            try:
                import_module("torch").autograd._disable_profiler()
            except RuntimeError as error:
                return f"torch's profiler did not end: {first_line(error)}"
            finally:
                self._settle()
            return ""

    def toggle(self, enable: bool, activities: frozenset[str]) -> bool:
        """Switches kinds of activities off and on again, for everybody who shares the recording; False elsewhere."""
        if not self.here:
            return False
        torch: Any = import_module("torch")
        profiler: Any = import_module("torch.autograd.profiler")
        members = {getattr(torch.profiler.ProfilerActivity, name) for name in activities}
        profiler._toggle_collection_dynamic(enable, members)
        return True

    def _mine(self) -> bool:
        return self._thread in (0, threading.get_ident()) or not (self._warm or self._members)

    def _settle(self) -> None:
        self._thread = threading.get_ident() if self._warm or self._members else 0

    def _union(self, *more: TorchSettings) -> TorchSettings:
        wants = [*(member.wants for member in self._members), *more]
        union = wants[0]
        for other in wants[1:]:
            union = union.together(other)
        return union

    def _make(self, wants: TorchSettings) -> str:
        """Warms up."""
        torch: Any = import_module("torch")
        profiler: Any = import_module("torch.autograd.profiler")
        arguments: dict[str, Any] = {"activity_filters": wants.filters} if wants.filters else {}
        profile = profiler.profile(
            use_kineto=True,
            use_cpu="CPU" in wants.activities if wants.activities else True,
            use_device=find_device(torch, wants),
            record_shapes=wants.record_shapes,
            profile_memory=wants.profile_memory,
            with_stack=wants.with_stack,
            with_flops=wants.with_flops,
            with_modules=wants.with_modules,
            experimental_config=_config(torch, wants),
            **arguments,
        )
        # The first time torch starts a thread for good, which is to take none of the program's signals.
        problem = _refusal(torch, "prepare", lambda: _core.without_signals(profile._prepare_trace))
        if not problem:
            self._profile, self._wants = profile, wants
        return problem

    def _begin(self, wants: TorchSettings) -> str:
        problem = "" if self._profile is not None else self._make(self._union(wants))
        profile: Any = self._profile
        if self._wants.with_stack and not problem:
            _await_births()
        problem = problem or _refusal(import_module("torch"), "start", profile._start_trace)
        if problem:
            self._profile = None
            return problem
        self._recording = True
        self.records_device = profile.use_device is not None
        self._brackets = []
        self._mark()
        self._anchor = ClockAnchor.read()
        return ""

    def _again(self, at: int) -> str:
        self._stretch(at)
        return self._begin_again()

    def _begin_again(self) -> str:
        problem = self._begin(self._union())
        if problem:
            members, self._members = self._members, []
            for member in members:
                member.lose(problem)
        return problem

    def _stretch(self, at: int) -> None:
        """Ends the recording, and gives everybody what it holds."""
        assert self._anchor is not None
        self._mark()
        anchors = self._anchor, ClockAnchor.read()
        brackets = tuple(self._brackets)
        result, problem = self._end()
        shared = SharedResult(result, len(self._members))
        for member in self._members:
            if result is None:
                member.lose(problem)
            else:
                member.take(FinishedTrace(shared, at, anchors, brackets, member.wants.with_flops))

    def _end(self) -> tuple[Any, str]:
        """Stops torch's profiler: what it recorded, or why there is nothing."""
        profile, self._profile = self._profile, None
        self._recording = self.records_device = False
        problem = _refusal(import_module("torch"), "stop", lambda: profile.__exit__(None, None, None))
        return (None if problem else profile.kineto_results), problem

    def _mark(self) -> None:
        """An operator whose begin is known by our clock, to check kineto's clock by."""
        torch: Any = import_module("torch")
        record = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        if record is None:
            return
        marker = record(MARKER)
        before = clock.now()
        marker.__enter__()
        after = clock.now()
        marker.__exit__(None, None, None)
        self._brackets.append((before, after))


session = KinetoSession()
"""That of this process."""


def find_device(torch: Any, wants: TorchSettings) -> str | None:
    """The accelerator that is there and asked for, as torch names it."""
    for name in _DEVICES:
        module = getattr(torch, name.lower(), None)
        asked = not wants.activities or name in wants.activities
        if asked and module is not None and hasattr(module, "is_available") and module.is_available():
            return name.lower()
    return None


def first_line(error: BaseException) -> str:
    """What an error says, without torch's own stack."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _await_births() -> None:
    """Waits, a second at most, until no thread has just begun: torch's tracer of Python functions hooks into every thread,
    and one that it met half made was seen to crash. A profiler that starts makes some."""
    quiet, known = 0, set[int | None]()
    for _ in range(500):
        threads = threading.enumerate()
        now = {thread.ident for thread in threads}
        quiet = quiet + 1 if now == known and all(thread.is_alive() for thread in threads) else 0
        if quiet == 5:
            return
        known = now
        time.sleep(0.002)


def _config(torch: Any, wants: TorchSettings) -> Any:
    """The user's, or the one that stops fastest: without torch's own post-processing, where nothing needs it."""
    if wants.experimental_config is not None:
        return wants.experimental_config
    make = torch._C._profiler._ExperimentalConfig
    if wants.with_stack or wants.with_flops:
        return make()
    try:
        return make(trace_only=True)
    except TypeError:
        return make()


def _refusal(torch: Any, what: str, call: Any) -> str:
    """Makes a call of torch's profiler; why torch refused, empty if it did not."""
    try:
        if what != "stop" and torch.autograd._profiler_enabled():
            raise RuntimeError("another profiler of torch is active on this thread")
        call()
    except (RuntimeError, AssertionError, ValueError) as error:
        return f"a window has no operators, torch's profiler did not {what}: {first_line(error)}"
    return ""
