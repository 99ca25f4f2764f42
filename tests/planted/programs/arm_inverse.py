"""Inverse kinematics of an arm of three joints: the angles that bring the hand to a point."""

import argparse

import torch
from torch import nn

LENGTHS = (1.0, 0.7, 0.4)


def hand(angles):
    total = angles.cumsum(1)
    lengths = torch.tensor(LENGTHS)
    return torch.stack([(lengths * total.cos()).sum(1), (lengths * total.sin()).sum(1)], dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=48)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(4)

    angles = torch.rand(32_768, 3) * torch.tensor([3.0, 1.5, 1.5])
    points = hand(angles)
    net = nn.Sequential(nn.Linear(2, args.hidden), nn.Tanh(), nn.Linear(args.hidden, args.hidden), nn.Tanh())
    net.append(nn.Linear(args.hidden, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    step = 0
    while step < args.steps:
        order = torch.randperm(len(points))
        for start in range(0, len(points), args.batch):
            chosen = order[start : start + args.batch]
            loss = nn.functional.mse_loss(net(points[chosen]), angles[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 500 == 0:
                print(step, f"{loss.item():.5f}", flush=True)
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
