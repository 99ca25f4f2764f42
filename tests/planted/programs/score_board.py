"""Live scores: a visitor follows a match, and gets each change of its score until the match or the visit is over."""

import argparse
import asyncio
import random
from dataclasses import dataclass, field


@dataclass
class Visit:
    match: int
    received: list = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Board:
    def __init__(self, matches, idle_timeout):
        self.scores = [[0, 0] for _ in range(matches)]
        self.followers = [set() for _ in range(matches)]
        self.idle_timeout = idle_timeout
        self.tasks = set()

    def follow(self, visit):
        task = asyncio.create_task(self.attend(visit))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def attend(self, visit):
        followers = self.followers[visit.match]
        followers.add(id(visit))
        visit.received.append(tuple(self.scores[visit.match]))
        try:
            await asyncio.wait_for(visit.left.wait(), self.idle_timeout or None)
        except TimeoutError:
            pass
        finally:
            followers.discard(id(visit))

    async def play(self, match, chance):
        while True:
            await asyncio.sleep(chance.uniform(0.05, 0.2))
            self.scores[match][chance.randrange(2)] += 1


async def visits(board, chance):
    """Some visitors say goodbye, others close the window."""
    while True:
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        visit = Visit(chance.randrange(len(board.scores)))
        board.follow(visit)
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        if chance.random() < 0.3:
            visit.left.set()


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle-timeout", type=float, default=0, metavar="SECONDS", help="end of a visit, 0: none")
    parser.add_argument("--seconds", type=float, default=6)
    args = parser.parse_args()

    board = Board(matches=5, idle_timeout=args.idle_timeout)
    players = [asyncio.create_task(board.play(match, random.Random(match))) for match in range(5)]
    crowds = [asyncio.create_task(visits(board, random.Random(50 + number))) for number in range(4)]
    await asyncio.sleep(args.seconds)
    print("scores:", *("{}:{}".format(*score) for score in board.scores))
    for task in players + crowds:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
