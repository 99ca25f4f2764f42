"""Click-through rate from a table of categories and numbers."""

import argparse
import os
import pathlib
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def table(rows, sizes, numbers, seed):
    g = torch.Generator().manual_seed(seed)
    categories = torch.stack([torch.randint(size, (rows,), generator=g) for size in sizes], dim=1)
    values = torch.randn(rows, numbers, generator=g)
    odds = values[:, 0] - 0.5 * values[:, 1] + (categories[:, 0] % 7 - 3) * 0.4
    clicked = (torch.rand(rows, generator=g) < torch.sigmoid(odds - 1)).float()
    return TensorDataset(categories, values, clicked)


class ClickModel(nn.Module):
    def __init__(self, sizes, numbers, width, hidden):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width, sparse=True) for size in sizes)
        layers = []
        previous = width * len(sizes) + numbers
        for size in hidden:
            layers += [nn.Linear(previous, size), nn.ReLU()]
            previous = size
        self.layers = nn.Sequential(*layers, nn.Linear(previous, 1))

    def forward(self, categories, values):
        found = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        return self.layers(torch.cat([*found, values], dim=1)).squeeze(1)


def save(path, step, model, optimizer):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def train(args, folder):
    torch.manual_seed(args.seed)
    sizes = [120_000, 40_000, 2_000, 500]
    data = table(args.steps * args.batch, sizes, numbers=13, seed=args.seed)
    batches = DataLoader(data, batch_size=None, sampler=torch.arange(len(data)).split(args.batch))
    model = ClickModel(sizes, 13, width=64, hidden=args.hidden)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()
    running = 0.0

    for step, (categories, values, clicked) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = criterion(model(categories, values), clicked)
        loss.backward()
        optimizer.step()
        running += (loss.item() - running) / min(step, 40)
        if step % 10 == 0:
            print("step", step, "loss", round(running, 4))
        if step % args.save_every == 0:
            save(folder / "last.pt", step, model, optimizer)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128])
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, help="folder of the saved model (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        train(args, args.out)
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(args, pathlib.Path(folder))


if __name__ == "__main__":
    main()
