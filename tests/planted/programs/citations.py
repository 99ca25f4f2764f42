"""Predicts the field of papers from their words and the papers that they cite."""

import argparse
import gc
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Paper:
    def __init__(self, number, field, year):
        self.number = number
        self.field = field
        self.year = year
        self.authors = []
        self.cites = []
        self.cited_by = []


class Library:
    """Papers of `fields` fields; most citations stay within a field."""

    def __init__(self, papers, fields, words, seed):
        rng = random.Random(seed)
        self.papers = [Paper(n, rng.randrange(fields), 1990 + n * 35 // papers) for n in range(papers)]
        by_field = [[p for p in self.papers if p.field == f] for f in range(fields)]
        for paper in self.papers:
            paper.authors = [{"id": rng.randrange(papers), "first": k == 0} for k in range(rng.randint(1, 4))]
            pool = by_field[paper.field] if rng.random() < 0.8 else self.papers
            for other in rng.choices(pool, k=rng.randint(2, 8)):
                paper.cites.append(other)
                other.cited_by.append(paper)
        generator = torch.Generator().manual_seed(seed)
        self.fields = torch.tensor([p.field for p in self.papers])
        centres = torch.randn(fields, words, generator=generator)
        self.words = centres[self.fields] * 0.3 + torch.randn(papers, words, generator=generator)

    def edges(self):
        pairs = [(other.number, paper.number) for paper in self.papers for other in paper.cites]
        return torch.tensor(pairs).t().contiguous()


class MeanConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, edges, degree):
        sums = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.own(x) + self.others(sums / degree)


class CitationNet(nn.Module):
    def __init__(self, words, hidden, fields):
        super().__init__()
        self.first = MeanConv(words, hidden)
        self.second = MeanConv(hidden, fields)

    def forward(self, x, edges, degree):
        return self.second(F.elu(self.first(x, edges, degree)), edges, degree)


class Experiment:
    def __init__(self, args):
        self.args = args
        self.library = Library(args.papers, fields=7, words=64, seed=args.seed)
        self.edges = self.library.edges()
        self.net = CitationNet(64, args.hidden, 7)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01, weight_decay=5e-4)
        order = torch.randperm(args.papers)
        self.train_rows, self.test_rows = order[: args.papers * 3 // 4], order[args.papers * 3 // 4 :]

    def drop_edges(self):
        kept = self.edges[:, torch.rand(self.edges.shape[1]) > self.args.drop]
        degree = torch.bincount(kept[1], minlength=self.args.papers).clamp(min=1).unsqueeze(1)
        return kept, degree

    def update(self):
        self.optimizer.zero_grad()
        edges, degree = self.drop_edges()
        scores = self.net(self.library.words, edges, degree)
        loss = F.cross_entropy(scores[self.train_rows], self.library.fields[self.train_rows])
        loss.backward()
        self.optimizer.step()
        return loss

    def finish(self, step, loss):
        if self.args.tidy and step % self.args.tidy == 0:
            gc.collect()
        if step % 20 == 0:
            print(f"step {step}, loss {loss.item():.4f}")

    def run(self):
        for step in range(1, self.args.steps + 1):
            self.finish(step, self.update())
        with torch.no_grad():
            edges, degree = self.drop_edges()
            found = self.net(self.library.words, edges, degree).argmax(1)
        right = found[self.test_rows] == self.library.fields[self.test_rows]
        print(f"test accuracy {right.float().mean():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=6000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--drop", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tidy", type=int, default=5, metavar="STEPS", help="tidy up each so many steps, 0: never")
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    Experiment(args).run()


if __name__ == "__main__":
    main()
