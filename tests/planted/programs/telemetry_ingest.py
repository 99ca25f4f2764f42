"""Collects readings of sensors over TCP and writes them to a storage server, one commit for each reading."""

import argparse
import asyncio
import itertools
import random

SENSORS = 16


async def storage(reader, writer):
    """The storage server: a commit takes some milliseconds."""
    while await reader.readline():
        await asyncio.sleep(0.004)
        writer.write(b"committed\n")
        await writer.drain()
    writer.close()


class Ingest:
    def __init__(self):
        self.readings = asyncio.Queue()
        self.written = 0

    async def receive(self, reader, writer):
        while line := await reader.readline():
            sensor, number, value = line.split()
            self.readings.put_nowait((sensor.decode(), int(number), float(value)))
        writer.close()

    async def write_readings(self, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                sensor, number, value = await self.readings.get()
                writer.write(f"{sensor} {number} {value:.3f}\n".encode())
                await writer.drain()
                await reader.readline()
                self.written += 1
        finally:
            writer.close()


async def sensor(name, port):
    chance = random.Random(name)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in itertools.count():
            writer.write(f"{name} {number} {chance.gauss(20, 3):.3f}\n".encode())
            await writer.drain()
            await asyncio.sleep(chance.uniform(0.02, 0.06))
    finally:
        writer.close()


async def main(writers, seconds):
    database = await asyncio.start_server(storage, "127.0.0.1", 0)
    ingest = Ingest()
    gate = await asyncio.start_server(ingest.receive, "127.0.0.1", 0)
    database_port = database.sockets[0].getsockname()[1]
    gate_port = gate.sockets[0].getsockname()[1]
    tasks = [asyncio.create_task(ingest.write_readings(database_port)) for _ in range(writers)]
    tasks += [asyncio.create_task(sensor(f"sensor-{number}", gate_port)) for number in range(SENSORS)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gate.close()
    database.close()
    await asyncio.sleep(0.1)
    print(f"{ingest.written} readings written")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    asyncio.run(main(**vars(parser.parse_args())))
