"""Deep Q-learning in a maze."""

import argparse
import collections
import random

import torch
import torch.nn as nn

MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


class Maze:
    def __init__(self, side, rng):
        self.side, self.rng = side, rng
        self.walls = {(r, c) for r in range(side) for c in range(side) if rng.random() < 0.22}
        self.goal = (side - 1, side - 1)
        self.walls -= {(0, 0), self.goal}
        self.reset()

    def reset(self):
        self.at = (0, 0)
        self.left = 4 * self.side
        return self.at

    def open(self, cell):
        return 0 <= cell[0] < self.side and 0 <= cell[1] < self.side and cell not in self.walls

    def distance(self, start):
        """Moves from `start` to the goal, None where there is no way."""
        seen = {start: 0}
        queue = collections.deque([start])
        while queue:
            cell = queue.popleft()
            if cell == self.goal:
                return seen[cell]
            for dr, dc in MOVES:
                following = (cell[0] + dr, cell[1] + dc)
                if following not in seen and self.open(following):
                    seen[following] = seen[cell] + 1
                    queue.append(following)
        return None

    def step(self, action):
        dr, dc = MOVES[action]
        cell = (self.at[0] + dr, self.at[1] + dc)
        if self.open(cell):
            self.at = cell
        self.left -= 1
        done = self.at == self.goal
        return self.at, 1.0 if done else -0.01, done or self.left == 0


class Agent:
    def __init__(self, maze, args):
        self.maze, self.args = maze, args
        self.q = self.network(args.hidden)
        self.target = self.network(args.hidden)
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=args.lr)
        self.memory = collections.deque(maxlen=10_000)
        self.rng = random.Random(args.seed + 1)

    def network(self, hidden):
        cells = self.maze.side**2
        return nn.Sequential(
            nn.Embedding(cells, hidden), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, len(MOVES)),
        )  # fmt: skip

    def index(self, cell):
        return cell[0] * self.maze.side + cell[1]

    @torch.no_grad()
    def act(self, cell, epsilon):
        if self.rng.random() < epsilon:
            return self.rng.randrange(len(MOVES))
        return int(self.q(torch.tensor([self.index(cell)])).argmax())

    def play(self, moves, epsilon):
        cell = self.maze.at
        for _ in range(moves):
            action = self.act(cell, epsilon)
            following, reward, done = self.maze.step(action)
            self.memory.append((cell, action, reward, following, done))
            cell = self.maze.reset() if done else following

    def shaped(self, cell, following, reward):
        before, after = self.maze.distance(cell), self.maze.distance(following)
        if before is None or after is None:
            return reward
        return reward + 0.05 * (before - self.args.gamma * after)

    def learn(self):
        batch = self.rng.choices(self.memory, k=self.args.batch)
        rewards = [move[2] for move in batch]
        if self.args.shaping:
            rewards = [self.shaped(move[0], move[3], move[2]) for move in batch]
        cells = torch.tensor([self.index(move[0]) for move in batch])
        actions = torch.tensor([move[1] for move in batch])
        nexts = torch.tensor([self.index(move[3]) for move in batch])
        ends = torch.tensor([float(move[4]) for move in batch])
        with torch.no_grad():
            best = self.target(nexts).max(1).values
        goals = torch.tensor(rewards) + self.args.gamma * (1 - ends) * best
        values = self.q(cells).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, goals)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--shaping", action=argparse.BooleanOptionalAction, default=True, help="reward progress")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    agent = Agent(Maze(args.side, random.Random(args.seed)), args)
    agent.play(500, epsilon=1.0)
    for update in range(args.updates):
        agent.play(4, epsilon=max(0.1, 1 - update / 100))
        loss = agent.learn()
        if update % 40 == 0:
            print(f"update {update}: loss {loss.item():.5f}, {len(agent.memory)} moves")
            agent.target.load_state_dict(agent.q.state_dict())


if __name__ == "__main__":
    main()
