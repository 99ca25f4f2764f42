"""Messages of exporters and collectors over a WebSocket. `docs/collector-protocol.md` describes it.

A message is the length of its header (four bytes, little-endian), the header in MessagePack, and a payload. Only `Frames`
has one: whole frames of a journal, one after the other, as they stand in the rank's file and in the collector's. Their
numbers are the sequence numbers of the protocol.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.encoding import msgpack_bytes
from stepscope.runtime.journal.format import MAX_POSITION
from stepscope.runtime.journal.records import Int64, RunRecord
from stepscope.runtime.journal.segments import MAX_SEGMENTS
from stepscope.runtime.requests.command import Answer

VERSION = 3
"""Changes when old collectors could no longer read new exporters, or the other way round."""
SUBPROTOCOL = f"stepscope.v{VERSION}"
PATH = "/v1/stream"
"""Path at which the collector takes streams."""
MAX_HEADER = 1 << 16
"""Bytes."""
MAX_ORDER = 1 << 15
"""Bytes of a command or its answer."""
MAX_NAME = 255
"""Characters of a name in a header."""
MAX_MESSAGE = 80 << 20
"""Bytes: the largest frame of a journal, and what is before it."""
MAX_FRAMES = 1 << 16
"""Frames in one message."""
MAX_SUMMARY_STEPS = 2048
"""Steps in one summary."""
MAX_SUMMARY_RUNS = 1024
"""Runs of steps in one summary, so that it fits a header."""
MIN_MAX_MESSAGE = 1 << 20
"""Bytes of a message that every collector takes at least."""

_LENGTH = struct.Struct("<I")

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
StreamId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Checksum = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
SyncWord = Annotated[bytes, msgspec.Meta(min_length=4, max_length=4)]
Reason = Annotated[str, msgspec.Meta(max_length=1000)]

ClockId = Annotated[str, msgspec.Meta(max_length=64)]


class Hello(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """The first message of an exporter: which stream this is."""

    stream: StreamId
    """Id of the journal, which does not change when it is sent again. Names the stream's directory."""
    sync: SyncWord
    """Sync word of the journal's frames."""
    run: RunRecord
    control: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    """Version of the commands that the process obeys (`Order`); 0: none. Collectors that know nothing of it ignore it."""
    summaries: bool = False
    """Whether facts of steps are sent apart from the frames (`StepSummary`)."""


class Welcome(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """The answer: from which frame on the collector has nothing."""

    next: Count
    max_message: Count
    """Bytes that a message should have at most; one with a single frame may be larger."""
    largest: Count
    """Bytes of a message that the collector takes. A larger frame is left out."""
    checksum: Checksum | None = None
    """CRC-32 in the header of the frame before `next`; `None` if the collector does not have that frame."""
    segment_bytes: Count = 0
    """Bytes that a segment should have at most, so that the collector can keep its limit of the disk; 0: no wish."""
    gather_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """How long small frames should wait for more, as each message of many ranks costs the collector as much as many events."""


class Refused(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """The collector does not go on with this connection."""

    reason: Reason
    retry: bool
    """Whether it may be otherwise later."""


class Frames(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Frames `first` to `first + count - 1` of one segment of the journal; the payload."""

    first: Count
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAMES)]
    segment: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEGMENTS)]
    """Number of the segment."""
    position: Annotated[int, msgspec.Meta(ge=0, lt=MAX_POSITION)]
    """Bytes of the journal before the first frame."""


class StepRun(msgspec.Struct, frozen=True, array_like=True):
    """Steps of one window that follow each other without a gap."""

    window: Int64
    first: Int64
    """Number of the first step."""
    begin_ns: Int64
    """Begin by the rank's monotonic clock. Each further step begins when the one before it ends."""
    steps: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8 * MAX_SUMMARY_STEPS)]
    """8 bytes for each step: `step_summary.STEP_DTYPE`."""


class StepSummary(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """Facts of the steps that have ended since the one before; about once a second, whatever else waits to be sent. Nothing confirms
    it. `step_summary` makes and reads it."""

    events: Count
    """Events that were written to the journal so far."""
    lost: Count
    """Events that the journal does not have."""
    left_out: Count
    """Steps since the summary before that are not in `runs`, as there were too many."""
    runs: Annotated[list[StepRun], msgspec.Meta(max_length=MAX_SUMMARY_RUNS)]
    sums: Annotated[bytes, msgspec.Meta(max_length=1024)]
    """Sums over the steps of `runs`: `step_summary.SUMS_DTYPE`; empty without steps."""
    ended: bool = False
    """Whether the run is being closed: no further steps come."""


class Ack(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """All frames below `next` are written."""

    next: Count


class Ping(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """Asks for the collector's clock; `sent` is the exporter's, in ns."""

    sent: Int64


class Pong(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The answer to `Ping`: what the collector's clock was when it came, and when this was sent, in ns of Unix time."""

    sent: Int64
    arrived: Int64
    answered: Int64
    clock: ClockId
    """Names the collector's clock: readings of two clocks do not compare."""


class Order(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """A command for the process; only to those whose `Hello` says that they obey any."""

    number: Count
    """Number of the order on this connection."""
    command: Annotated[bytes, msgspec.Meta(max_length=MAX_ORDER)]
    """`stepscope.runtime.requests.command.Command`, in JSON."""


class Obeyed(msgspec.Struct, frozen=True, tag=9, array_like=True):
    """The answer to an `Order`."""

    number: Count
    answer: Annotated[bytes, msgspec.Meta(max_length=MAX_ORDER)]
    """`stepscope.runtime.requests.command.Answer`, in JSON."""

    def decoded(self) -> Answer:
        """The answer; that it cannot be read is one, too."""
        try:
            return msgspec.json.decode(self.answer, type=Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Answer(error=f"the answer cannot be read: {error}")


Header = Hello | Welcome | Refused | Frames | Ack | Ping | Pong | Order | Obeyed | StepSummary

_decode = msgspec.msgpack.Decoder(Header).decode


def encode(header: Header, *payload: bytes | bytearray | memoryview) -> bytes:
    """A message."""
    packed = msgpack_bytes(header)
    return b"".join((_LENGTH.pack(len(packed)), packed, *payload))


def decode(message: bytes) -> tuple[Header, memoryview]:
    """The header and the payload of a message. Raises `FormatError` if it is no message of this protocol."""
    if len(message) < _LENGTH.size:
        raise FormatError(f"a message of {len(message)} bytes has no header")
    (length,) = _LENGTH.unpack_from(message)
    end = _LENGTH.size + length
    if length > MAX_HEADER or end > len(message):
        raise FormatError(f"a message of {len(message)} bytes claims a header of {length}")
    view = memoryview(message)
    try:
        header = _decode(view[_LENGTH.size : end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the header of a message cannot be read: {error}") from error
    if end < len(message) and not isinstance(header, Frames):
        raise FormatError(f"{type(header).__name__} has a payload of {len(message) - end} bytes, and should have none")
    return header, view[end:]


def short(run: RunRecord) -> RunRecord:
    """A run with names of `MAX_NAME` characters at most."""
    names = ("name", "host", "job", "clock", "id")
    return msgspec.structs.replace(run, **{name: getattr(run, name)[:MAX_NAME] for name in names})


def identity(run: RunRecord) -> RunRecord:
    """Identity of a run: equal in each of its journals and streams, and in no others."""
    return msgspec.structs.replace(short(run), created_ns=0)


def job_of(run: RunRecord) -> str:
    """Identity of a job: the launcher's name for it, or the run's name and its number of ranks."""
    if run.job:
        return run.job
    # Names in a Hello are cut to this.
    name = run.name[:MAX_NAME]
    return name if run.world_size is None else f"{name} x{run.world_size}"
