"""Spans as decorators, for functions, generators and coroutines; instants, flows and a category of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import stepscope as sc

loading = sc.Domain("loading")


@sc.span("parse", format="csv")
def parse(line: str) -> list[float]:
    return [float(cell) for cell in line.split(",")]


@loading.span("read")
def read(count: int) -> Iterator[str]:
    """Each resumption is a span: what the consumer does in between is not counted."""
    for number in range(count):
        yield f"{number},{number * 2}"


@sc.span("send")
async def send(row: list[float], number: int) -> None:
    sc.flow("row", number, "end")
    await asyncio.sleep(0.001)
    if not row[0]:
        sc.instant("a row of zeros", number=number)


async def main() -> None:
    async with sc.trace(exporters=[sc.ChromeTraceExporter("trace.json")], output_dir="run") as profiler:
        for number, line in enumerate(read(5)):
            with sc.span("prepare"):
                row = parse(line)
                sc.flow("row", number, "start")
            await send(row, number)
    print(profiler.summary())


if __name__ == "__main__":
    asyncio.run(main())
