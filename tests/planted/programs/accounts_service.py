"""Accounts over TCP, one JSON object a line: people register, and their profiles are asked for."""

import argparse
import asyncio
import hashlib
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

ITERATIONS = 600_000


class Accounts:
    def __init__(self, pool):
        self.profiles = {}
        self.pool = ThreadPoolExecutor(pool) if pool else None

    def digest(self, password):
        salt = os.urandom(16)
        return salt + hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)

    async def register(self, name, password):
        if self.pool is None:
            digest = self.digest(password)
        else:
            digest = await asyncio.get_running_loop().run_in_executor(self.pool, self.digest, password)
        self.profiles[name] = {"name": name, "since": time.time(), "password": digest.hex()}
        return {"registered": name}

    async def profile(self, name):
        profile = self.profiles.get(name)
        return {"name": name, "known": profile is not None, "since": profile and profile["since"]}

    async def handle(self, reader, writer):
        while line := await reader.readline():
            request = json.loads(line)
            if request["do"] == "register":
                answer = await self.register(request["name"], request["password"])
            else:
                answer = await self.profile(request["name"])
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()


async def ask(reader, writer, **request):
    writer.write(json.dumps(request).encode() + b"\n")
    await writer.drain()
    return json.loads(await reader.readline())


async def newcomer(port, deadline, chance):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(chance.uniform(0.15, 0.6))
        await ask(reader, writer, do="register", name=f"user{number}", password=f"secret{chance.random()}")
        number += 1
    writer.close()


async def visitor(port, deadline, chance, delays):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < deadline:
        await asyncio.sleep(chance.uniform(0.005, 0.04))
        asked = time.perf_counter()
        await ask(reader, writer, do="profile", name=f"user{chance.randrange(20)}")
        delays.append(time.perf_counter() - asked)
    writer.close()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool", type=int, default=0, help="threads for digests")
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()

    accounts = Accounts(args.pool)
    server = await asyncio.start_server(accounts.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    deadline = time.monotonic() + args.seconds
    delays = []
    async with server:
        await asyncio.gather(
            newcomer(port, deadline, random.Random(1)),
            *(visitor(port, deadline, random.Random(10 + number), delays) for number in range(8)),
        )
    delays.sort()
    half, most = (delays[int(len(delays) * part)] * 1e3 for part in (0.5, 0.99))
    print(
        f"{len(accounts.profiles)} accounts, {len(delays)} profiles: half within {half:.1f} ms, 99 % within {most:.1f} ms"
    )


if __name__ == "__main__":
    asyncio.run(main())
