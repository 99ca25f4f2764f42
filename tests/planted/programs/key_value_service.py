"""A store of keys and values in memory, over TCP, and clients that use it."""

import argparse
import asyncio
import random
import time


class Store:
    def __init__(self):
        self.values = {}

    def answer(self, line):
        command, key, *rest = line.decode().split(maxsplit=2)
        if command == "set":
            self.values[key] = rest[0]
            return "ok"
        return self.values.get(key, "-")

    async def serve(self, reader, writer):
        while line := await reader.readline():
            writer.write(self.answer(line.strip()).encode() + b"\n")
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def client(port, number, seconds):
    chance = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        key = f"key{chance.randrange(200)}"
        command = f"set {key} {chance.random()}" if chance.random() < 0.2 else f"get {key}"
        writer.write(command.encode() + b"\n")
        await writer.drain()
        await reader.readline()
        asked += 1
        await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()
    return asked


async def main(clients, seconds):
    store = Store()
    async with await asyncio.start_server(store.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        asked = await asyncio.gather(*(client(port, number, seconds) for number in range(clients)))
    print(f"{sum(asked)} commands, {len(store.values)} keys")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0)
    asyncio.run(main(**vars(parser.parse_args())))
