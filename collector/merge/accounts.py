"""The accounts of a merged trace: those of its members, side by side."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.runtime.accounting.ledger import Ledger, sum_ledgers


def together(ledgers: Iterable[tuple[str, Ledger]]) -> Ledger:
    """One ledger of those of several members.

    Args:
        ledgers: whose each is, and what it says. Sources and outputs are called `rank 0: recorder` then.
    """
    return sum_ledgers(
        Ledger(
            {f"{label}: {name}": source for name, source in ledger.sources.items()},
            {f"{label}: {name}": output for name, output in ledger.outputs.items()},
            ledger.cut,
            ledger.windows_left_out,
        )
        for label, ledger in ledgers
    )
