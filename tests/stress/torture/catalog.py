"""All faults, by family: `FAULTS` of every module in a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import msgspec

from tests.stress.torture.fault import Fault

PACKAGE = "tests.stress.torture.faults"
"""Where the faults of stepscope are."""


class Catalog(msgspec.Struct, frozen=True):
    """What a package holds."""

    faults: tuple[Fault, ...]
    """In the order of their modules' names, and of their `FAULTS`."""
    about: dict[str, str]
    """What the module of a family says of itself, its first line."""
    broken: dict[str, str]
    """Modules that could not be imported, and why."""

    @property
    def families(self) -> tuple[str, ...]:
        """Their names, each once."""
        return tuple(dict.fromkeys(fault.family for fault in self.faults))

    def chosen(self, names: list[str]) -> Catalog:
        """What is left of it if only these families, or `family/fault`, are wanted; everything without names.

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
    """What its trial says that it does, as one paragraph."""
    trial: Callable[..., object] = getattr(fault.trial, "func", fault.trial)  # of a functools.partial, what it calls
    return " ".join((inspect.getdoc(trial) or "").partition("\n\n")[0].split())


def load(package: str = PACKAGE) -> Catalog:
    """Imports every module of a package. One that fails is told in `broken`."""
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
