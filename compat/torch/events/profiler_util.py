"""The private parts of `torch.autograd.profiler_util` in use here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from stepscope.backends.torch.importing import private


def shown_name(util: Any, text: str, *, grouped: bool) -> str:
    """A name as torch shows it in traces, or with `grouped` as it groups by it: with a `*` in place of a number.

    Raises:
        BackendError: if this version of torch has no such function; the others, too.
    """
    return str(private(util, "_rewrite_name")(text, with_wildcard=grouped))


def without_overload(text: str) -> tuple[str, str]:
    """An operator's name and that of its overload, which torch's recording has in one text: `aten::add.Tensor`."""
    namespace, colons, operator = text.partition("::")
    if not colons or not namespace.isidentifier():
        return text, ""
    name, dot, overload = operator.partition(".")
    return (f"{namespace}::{name}", overload) if dot and name.isidentifier() and overload.isidentifier() else (text, "")


def stack_filter(util: Any) -> Callable[[str], bool]:
    """True if torch shows an entry of a stack."""
    is_shown: Callable[[str], bool] = private(util, "_filter_stack_entry")
    return is_shown


def metadata_names(util: Any) -> Collection[str]:
    """The names of the arguments of which torch makes an event's `event_metadata`; none in a torch that has no such thing."""
    names: Collection[str] = getattr(util, "_EVENT_METADATA_KEYS", ())
    return names


def find_parents(events: Any) -> None:
    """Sets parents and children of the operators in torch's `EventList`."""
    private(events, "_populate_cpu_children")()


def build_tree(events: Any) -> None:
    """The same, and all else that torch does to a list before it is shown."""
    private(events, "_build_tree")()
