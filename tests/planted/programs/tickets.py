"""Sends tickets of a help desk to the team that answers them: pieces of words, embeddings, attention."""

import argparse
import random
from collections import Counter

import torch
from torch import nn

TEAMS = {
    "accounts": "password login locked reset username signin verification authenticator expired recover",
    "billing": "invoice refund charged payment subscription receipt discount renewal declined statement",
    "delivery": "parcel courier tracking delayed address warehouse shipment damaged returned doorstep",
    "devices": "screen battery charger firmware bluetooth overheating restart microphone update flickering",
}
COMMON = "the my please since yesterday still cannot again after your because customer support waiting another problem"


def write_tickets(count, words, seed):
    rng = random.Random(seed)
    names = list(TEAMS)
    tickets = []
    for _ in range(count):
        team = rng.randrange(len(names))
        own, common = TEAMS[names[team]].split(), COMMON.split()
        text = [rng.choice(own) if rng.random() < 0.3 else rng.choice(common) for _ in range(words)]
        tickets.append((" ".join(text), team))
    return tickets


class Vocabulary:
    """Byte-pair encoding: the merges are learnt from the words of the tickets."""

    def __init__(self, texts, merges):
        words = Counter(word for text in texts for word in text.split())
        parts = {word: list(word + "_") for word in words}
        self.ranks = {}
        for rank in range(merges):
            pairs = Counter()
            for word, pieces in parts.items():
                for pair in zip(pieces, pieces[1:], strict=False):
                    pairs[pair] += words[word]
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = rank
            parts = {word: join(pieces, best) for word, pieces in parts.items()}
        letters = {letter for word in words for letter in word + "_"}
        pieces = sorted(letters | {first + second for first, second in self.ranks})
        self.ids = {piece: n for n, piece in enumerate(pieces, 1)}  # 0 fills up

    def __len__(self):
        return len(self.ids) + 1

    def merge(self, word):
        pieces = [*word, "_"]
        while len(pieces) > 1:
            rank, at = min(
                (self.ranks.get(pair, 1 << 30), n) for n, pair in enumerate(zip(pieces, pieces[1:], strict=False))
            )
            if rank == 1 << 30:
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    def encode(self, text):
        return [self.ids[piece] for word in text.split() for piece in self.merge(word)]


def join(pieces, pair):
    joined = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


class Preparation:
    """From tickets to tensors."""

    def __init__(self, vocabulary, longest):
        self.vocabulary, self.longest = vocabulary, longest

    def row(self, ticket):
        known = ticket if isinstance(ticket, list) else self.vocabulary.encode(ticket)
        return known[: self.longest]

    def pad(self, rows):
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    def __call__(self, batch):
        return self.pad([self.row(text) for text, _ in batch]), torch.tensor([team for _, team in batch])


class Router(nn.Module):
    def __init__(self, pieces, width, teams):
        super().__init__()
        self.embed = nn.Embedding(pieces, width, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.decide = nn.Linear(width, teams)

    def forward(self, ids):
        x = self.layer(self.embed(ids), src_key_padding_mask=ids == 0)
        return self.decide(x.mean(1))


class Session:
    def __init__(self, model, prepare, lr):
        self.model, self.prepare = model, prepare
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, batch):
        ids, teams = self.prepare(batch)
        return self.criterion(self.model(ids), teams)

    def step(self, batch):
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--encode", choices=["as-needed", "first"], default="as-needed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    tickets = write_tickets(1000, words=60, seed=6)
    vocabulary = Vocabulary([text for text, _ in tickets], merges=150)
    if args.encode == "first":
        tickets = [(vocabulary.encode(text), team) for text, team in tickets]
    session = Session(Router(len(vocabulary), args.width, len(TEAMS)), Preparation(vocabulary, longest=128), lr=5e-4)
    rng = random.Random(1)
    for step in range(args.steps):
        loss = session.step(rng.sample(tickets, args.batch))
        if step % 50 == 49:
            print(f"{step + 1}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
