"""What the records of an agreement say of a request, for a rank that had no part in it."""

from __future__ import annotations

from stepscope.runtime.control.agreement.records import Decision, Proposal, Records, Start, Wish
from stepscope.runtime.control.ranks import ranks_text
from stepscope.runtime.control.requests.armed import Armed


def answer_of_others(start: Start) -> Armed:
    """To a window that was decided for, and that other ranks than this one record."""
    request = start.request
    if request is None:
        return Armed(True, None, start.step, reason=f"asked of ranks {ranks_text(start.ranks)}")
    by = f"by rank{'s' * (len(start.ranks) != 1)} {ranks_text(start.ranks)}"
    return Armed(True, start.step, request.stop_step, request.run_id, by)


def answer_before(records: Records, key: str, wish: Wish) -> Armed | None:
    """To a wish that was there already; `None` while it is not decided on."""
    found = records.read(Wish, key)
    number = found.proposal if found is not None else 0
    while number:
        decision, start = records.read(Decision, number), records.read(Start, number)
        if decision is None:
            return None
        if decision.decision == "committed" and start is not None:
            return answer_of_others(start)
        following = records.read(Proposal, number + 1)
        if not decision.again or following is None or following.key != key:
            return Armed(False, run_id=wish.asked.run_id, reason=decision.reason)
        number += 1
    return None


def repeats(records: Records, wish: Wish, step: int) -> int:
    """The proposal whose window is what the wish asks for, and is not over; 0 if there is none.

    Signals that all ranks of a job are sent are one request, and so is what all of them read in a file.

    Args:
        records: of the run.
        wish: what is asked for.
        step: where the loop is.
    """
    if wish.request is None or wish.trigger not in ("signal", "file"):
        return 0
    for number in range(records.latest(), 0, -1):
        proposal = records.read(Proposal, number)
        if proposal is None:
            return 0
        ends = proposal.end is not None and proposal.end.command == "abort"
        same = proposal.trigger == wish.trigger and (wish.trigger == "signal" or proposal.request == wish.request)
        if not same and not ends:
            continue
        decision, start = records.read(Decision, number), records.read(Start, number)
        if decision is None or decision.decision != "committed" or start is None:
            continue
        if start.request is None:
            return 0  # what was to come then is forgotten
        if start.request.stop_step is None or start.request.stop_step >= step:
            return number
    return 0
