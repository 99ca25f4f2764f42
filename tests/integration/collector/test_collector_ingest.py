"""A collector takes what is right, and what a client does wrong costs that client's connection only."""

from __future__ import annotations

import logging
import shutil
import struct
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import OutputError
from stepscope.runtime.journal import format as fmt
from tests.support.collectors import answer, collecting, connected, send_frames, welcomed
from tests.support.messages import refused
from tests.support.streams import STREAM, SYNC, frames, frames_header, hello

OTHER = "fedcba9876543210" * 2


async def test_frames_are_written_before_they_are_confirmed(tmp_path: Path) -> None:
    """Confirmed frames are in the file at that moment, and another connection goes on after them."""
    async with collecting(tmp_path) as running:
        async with connected(running.url) as one:
            await one.send(hello())
            assert isinstance(welcome := await answer(one), protocol.Welcome)
            assert welcome.next == 0
            assert await send_frames(one, 0, 3) == protocol.Ack(3)
            assert running.journal().read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 3)
        async with connected(running.url) as one:
            await one.send(hello())
            assert isinstance(welcome := await answer(one), protocol.Welcome)
            assert welcome.next == 3
            assert await send_frames(one, 1, 4) == protocol.Ack(5)
    assert running.journal().read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 5)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x01", "has no header"),
        (b"\xff\xff\xff\xff", "claims a header"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "cannot be read"),
        ("text", "messages are binary"),
        (protocol.encode(protocol.Ack(3)), "Ack is not for the collector"),
        (protocol.encode(protocol.Ping(3)) + b"more", "should have none"),
        (protocol.encode(frames_header(0, 1, segment=1, position=19), frames(0, 1)), "begins at byte 19"),
        (protocol.encode(frames_header(0, 1), frames(0, 1, sync=b"\xf5xyz")), "no frame of this journal"),
        (protocol.encode(frames_header(0, 1), frames(0, 1)[:-3]), "damaged, or not whole"),
        (protocol.encode(frames_header(0, protocol.MAX_FRAMES + 1)), "cannot be read"),
        (protocol.encode(frames_header(0, 2), frames(0, 1)), "1 came"),
        (hello(), "Hello is not for the collector"),
    ],
)
async def test_a_malformed_message_ends_its_connection(tmp_path: Path, message: bytes | str, reason: str) -> None:
    """The sender gets the reason, the log has it, none of the message is stored, and another connection never notices."""
    async with collecting(tmp_path) as running, connected(running.url) as good, connected(running.url) as bad:
        for one, stream in ((good, OTHER), (bad, STREAM)):
            await one.send(hello(stream=stream))
            assert isinstance(await answer(one), protocol.Welcome)
        await bad.send(message)
        assert isinstance(refusal := await answer(bad), protocol.Refused)
        assert reason in refusal.reason and not refusal.retry
        with pytest.raises(ConnectionClosed):
            await answer(bad)
        assert await send_frames(good, 0, 2) == protocol.Ack(2)
    assert not running.journal().exists()
    (line,) = (running.directory / "refused.jsonl").read_text().splitlines()
    assert reason in line and '"client":"127.0.0.1:' in line


@pytest.mark.parametrize(
    "first",
    [
        hello(stream="../../../../../tmp/evil-000000000"),
        hello(stream="a" * 32 + "\n"),
        hello(sync=b"\xf5abcd"),
        hello(control=-1),
        protocol.encode(protocol.Ping(1)),
    ],
)
async def test_a_connection_without_hello_is_refused(tmp_path: Path, first: bytes) -> None:
    """Ids are checked before they are part of a path."""
    async with collecting(tmp_path / "c") as running, connected(running.url) as one:
        await one.send(first)
        assert isinstance(refusal := await answer(one), protocol.Refused)
        assert not refusal.retry
        assert not list((running.directory / "streams").iterdir())
    assert not list(tmp_path.parent.glob("*evil*"))


async def test_silence_is_not_waited_for(tmp_path: Path) -> None:
    """Neither by who connects and says nothing, nor by who stops in the middle of a message."""
    async with (
        collecting(tmp_path, hello_timeout=0.2, idle_timeout=0.4) as running,
        connected(running.url) as silent,
        connected(running.url) as stuck,
    ):
        await stuck.send(hello())
        assert isinstance(await answer(stuck), protocol.Welcome)
        stuck.transport.write(b"\x82\xfe\xff\xff\0\0\0\0" + b"only the beginning")
        for one in (silent, stuck):
            assert isinstance(refusal := await answer(one), protocol.Refused)
            assert refusal.retry


async def test_a_message_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    """Its length alone ends the connection."""
    async with collecting(tmp_path) as running, welcomed(running) as one:
        one.transport.write(b"\x82\xff" + struct.pack(">Q", 1 << 40) + b"\0\0\0\0")
        with pytest.raises(ConnectionClosed) as closed:
            await answer(one)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


@pytest.mark.parametrize("offered", [None, [Subprotocol("stepscope.v9")]])
async def test_another_version_is_refused_before_it_connects(tmp_path: Path, offered: list[Subprotocol] | None) -> None:
    """The answer says which version is spoken."""
    async with collecting(tmp_path) as running:
        with pytest.raises(InvalidStatus) as refused:
            async with connected(running.url, subprotocols=offered):
                pass
    assert refused.value.response.status_code == 426
    assert protocol.SUBPROTOCOL.encode() in bytes(refused.value.response.body or b"")
    assert "does not speak" in (tmp_path / "refused.jsonl").read_text()


async def test_the_newest_connection_has_the_stream(tmp_path: Path) -> None:
    """A client whose old connection is half-open goes on with a new one; the old one gets the reason and is closed."""
    async with collecting(tmp_path) as running, connected(running.url) as old:
        await old.send(hello())
        assert isinstance(await answer(old), protocol.Welcome)
        assert await send_frames(old, 0, 2) == protocol.Ack(2)
        for first in (2, 4, 6):
            async with connected(running.url) as new:
                await new.send(hello())
                assert isinstance(welcome := await answer(new), protocol.Welcome)
                assert welcome.next == first
                if first == 2:
                    assert isinstance(refusal := await answer(old), protocol.Refused)
                    assert refusal == protocol.Refused("another connection of this stream came", True)
                assert await send_frames(new, first, 2) == protocol.Ack(first + 2)
    assert running.journal().read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 8)


@pytest.mark.parametrize("limit", ["max_bytes", "max_stream_bytes"])
async def test_a_limit_of_bytes(tmp_path: Path, limit: str) -> None:
    """Nothing beyond it is written, what is there stays, and the client gets the status to come again."""
    async with collecting(tmp_path, **{limit: 500}) as running:
        async with welcomed(running) as one:
            assert await send_frames(one, 0, 7) == protocol.Ack(7)
            assert isinstance(refusal := await send_frames(one, 7, 1), protocol.Refused)
            assert "limit of 500 bytes" in refusal.reason and refusal.retry
        async with welcomed(running, OTHER) as one:
            other = await send_frames(one, 0, 1)
            assert isinstance(other, protocol.Ack if limit == "max_stream_bytes" else protocol.Refused)
    assert running.journal().stat().st_size == 20 + 7 * 64


async def test_streams_are_limited(tmp_path: Path) -> None:
    """A client that makes up ids does not fill the directory; a stream that is known goes on."""
    async with collecting(tmp_path, max_kept_streams=2) as running:
        for number in (0, 1, 2, 1):
            async with connected(running.url) as one:
                await one.send(hello(stream=f"{number:032x}"))
                assert isinstance(await answer(one), protocol.Refused if number == 2 else protocol.Welcome)
    assert len(list((tmp_path / "streams").iterdir())) == 2


async def test_directories_are_private_and_no_link_is_followed(tmp_path: Path) -> None:
    """A stream's directory that is a link is refused; so is a collector's."""
    async with collecting(tmp_path / "c") as running:
        for path in (running.directory, running.directory / "streams"):
            assert path.stat().st_mode & 0o777 == 0o700
        (tmp_path / "target").mkdir()
        (running.directory / "streams" / STREAM).symlink_to(tmp_path / "target")
        async with connected(running.url) as one:
            await one.send(hello())
            assert isinstance(await answer(one), protocol.Refused)
        async with welcomed(running, OTHER) as one:
            assert running.journal(OTHER).parent.stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "target").iterdir())
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "streams").symlink_to(tmp_path / "target")
    with refused(OutputError, "/d"):
        async with collecting(tmp_path / "d"):
            pass


async def test_exporters_are_asked_for_less_when_they_are_many(tmp_path: Path) -> None:
    """Messages of all connections together stay within what a collector may hold."""
    async with (
        collecting(tmp_path, max_intake=1 << 20) as running,
        connected(running.url) as one,
        connected(running.url) as other,
    ):
        sizes: list[int] = []
        for made, stream in ((one, STREAM), (other, OTHER)):
            await made.send(hello(stream=stream))
            assert isinstance(welcome := await answer(made), protocol.Welcome)
            sizes.append(welcome.max_message)
        assert sizes == [1 << 20, 512 << 10]


async def test_streams_that_cannot_be_written_do_not_flood_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a full disk, or a directory that was removed, thousands of ranks come again every few seconds."""
    async with collecting(tmp_path) as running:
        shutil.rmtree(tmp_path / "streams")
        for _ in range(60):
            async with connected(running.url) as one:
                await one.send(hello())
                refused = await answer(one)
                assert isinstance(refused, protocol.Refused) and refused.retry and "cannot write" in refused.reason
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(running.journal().parent) in lines[0]
    assert len(lines) <= 20, "ten a minute"
