"""REINFORCE on a pendulum that is computed in batches; other processes rate the newest policy."""

import argparse
import math
import time

import torch
import torch.multiprocessing as mp
from torch import nn

HORIZON = 8


def make_policy():
    return nn.Sequential(nn.Linear(3, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 1))


def observe(angle, speed):
    return torch.stack([angle.cos(), angle.sin(), speed / 8], dim=1)


def swing(angle, speed, torque):
    speed = (speed + (15 * angle.sin() + 3 * torque.clamp(-2, 2)) * 0.05).clamp(-8, 8)
    cost = ((angle + math.pi) % (2 * math.pi) - math.pi) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
    return angle + speed * 0.05, speed, cost


def rate_policy(policy, score, finished):
    """Episodes with the newest policy, and the mean of their costs."""
    torch.set_num_threads(1)
    with torch.no_grad():
        while not finished.is_set():
            angle, speed = torch.rand(256) * 2 * math.pi, torch.zeros(256)
            costs = 0.0
            for _ in range(100):
                angle, speed, cost = swing(angle, speed, policy(observe(angle, speed)).squeeze(1))
                costs += cost.mean().item()
            score.value = costs / 100


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--raters", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(2)
    context = mp.get_context("spawn")
    policy = make_policy().share_memory()
    score, finished = context.Value("d", math.nan), context.Event()
    raters = [context.Process(target=rate_policy, args=(policy, score, finished)) for _ in range(args.raters)]
    for rater in raters:
        rater.start()
    while raters and math.isnan(score.value):
        time.sleep(0.1)

    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for step in range(args.steps):
        angle, speed = torch.rand(512) * 2 * math.pi, torch.zeros(512)
        log_probabilities, costs = [], []
        for _ in range(HORIZON):
            mean = policy(observe(angle, speed)).squeeze(1)
            torque = (mean + 0.3 * torch.randn(512)).detach()
            log_probabilities.append(-((torque - mean) ** 2) / 0.18)
            angle, speed, cost = swing(angle, speed, torque)
            costs.append(cost)
        returns = torch.stack(costs).flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean(dim=1, keepdim=True)) / (returns.std() + 1e-6)
        loss = (torch.stack(log_probabilities) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: cost {torch.stack(costs).mean().item():.3f}, rated {score.value:.3f}")

    finished.set()
    for rater in raters:
        rater.join()


if __name__ == "__main__":
    main()
