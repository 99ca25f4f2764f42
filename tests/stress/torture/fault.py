"""A fault: a way to break the runtime, and what became of the events then. All faults, by family."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts of one or more trials of a fault; adding two adds their counts and keeps the longest times."""

    tried: int = 1
    produced: int = 0
    """Events whose recording had returned."""
    exported: int = 0
    """Events found in what was written, recovered ones included, each once."""
    dropped: int = 0
    """Events missing there that some account names, with a reason."""
    blocked_ns: int = 0
    """Longest time that the training thread was blocked by a call of ours."""
    shutdown_ns: int = 0
    """Longest close, exit or recovery."""
    problems: tuple[str, ...] = ()
    """Other broken promises: an invalid file, a deadline missed, an event written twice, a thread left."""

    @property
    def lost(self) -> int:
        """Events that are missing without a count; negative if some were written twice."""
        return self.produced - self.exported - self.dropped

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            tried=self.tried + other.tried,
            produced=self.produced + other.produced,
            exported=self.exported + other.exported,
            dropped=self.dropped + other.dropped,
            blocked_ns=max(self.blocked_ns, other.blocked_ns),
            shutdown_ns=max(self.shutdown_ns, other.shutdown_ns),
            problems=self.problems + other.problems,
        )


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    family: str
    """Such as `killed`, `exporters`, `processes`."""
    name: str
    """The action, in a few words, such as `SIGKILL at a random moment`."""
    trial: Callable[[Path, int], Outcome]
    """Does it once, in an empty directory, with the number of the trial as seed; raises nothing for what is lost."""
    trials: int
    """In the full run."""
    short: int = 1
    """In the short run, which is part of the tests."""
    most_blocked_ns: int = 500_000_000
    """The training thread must not be blocked longer by a call of ours; far more than any takes, on a machine that is busy."""
    alone: bool = False
    """Whether no other fault is tried meanwhile: deadlines are judged closely, or the machine is loaded."""
    least: int = 1
    """Trials, of those, that are made even if there is no time for them."""


PACKAGE = "tests.stress.torture.faults"
"""Where the faults of stepscope are."""


class Catalog(msgspec.Struct, frozen=True):
    """The faults of a package."""

    faults: tuple[Fault, ...]
    """In the order of their modules' names, and of their `FAULTS`."""
    about: dict[str, str]
    """The first line of the docstring of each family's module."""
    broken: dict[str, str]
    """Modules that could not be imported, and why."""

    @property
    def families(self) -> tuple[str, ...]:
        """Their names, each once."""
        return tuple(dict.fromkeys(fault.family for fault in self.faults))

    def chosen(self, names: list[str]) -> Catalog:
        """The catalog of these families or of `family/fault` only; all of it without names.

        Raises:
            ValueError: if a name fits nothing; says which there are.
        """
        for name in names:
            if not any(name in (fault.family, label(fault)) for fault in self.faults):
                raise ValueError(f"no family or fault is called {name!r}; there are: {', '.join(self.families)}")
        wanted = [f for f in self.faults if not names or f.family in names or label(f) in names]
        return Catalog(tuple(wanted), self.about, {} if names else self.broken)


def label(fault: Fault) -> str:
    """How a fault is named where families are mixed."""
    return f"{fault.family}/{fault.name}"


def description(fault: Fault) -> str:
    """The first paragraph of its trial's docstring."""
    trial: Callable[..., object] = getattr(fault.trial, "func", fault.trial)  # of a functools.partial, what it calls
    return " ".join((inspect.getdoc(trial) or "").partition("\n\n")[0].split())


def load(package: str = PACKAGE) -> Catalog:
    """Imports every module of a package. One that fails is named in `broken`."""
    faults: list[Fault] = []
    about: dict[str, str] = {}
    broken: dict[str, str] = {}
    for module in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda found: found.name):
        try:
            imported = importlib.import_module(f"{package}.{module.name}")
            own: tuple[Fault, ...] = imported.FAULTS
        except Exception as error:
            broken[module.name] = f"{type(error).__name__}: {error}"
            continue
        faults += own
        about |= {fault.family: (inspect.getdoc(imported) or "").partition("\n\n")[0] for fault in own}
    return Catalog(tuple(faults), about, broken)
