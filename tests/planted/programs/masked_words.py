"""Pretrains a tiny transformer encoder with masked word pieces."""

import argparse
import random
import string

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

PAD, MASK, FIRST = 0, 1, 2


class Vocabulary:
    """Word pieces; those that continue a word begin with ##."""

    def __init__(self, size, rng):
        pieces = set()
        while len(pieces) < size - FIRST:
            piece = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 5)))
            pieces.add(piece if rng.random() < 0.5 else "##" + piece)
        self.pieces = ["[PAD]", "[MASK]", *sorted(pieces)]
        self.starts = [i for i in range(FIRST, size) if not self.pieces[i].startswith("##")]
        self.rest = [i for i in range(FIRST, size) if self.pieces[i].startswith("##")]

    def __len__(self):
        return len(self.pieces)


class Sentences(IterableDataset):
    def __init__(self, vocabulary, count, seed):
        self.vocabulary, self.count, self.seed = vocabulary, count, seed

    def __iter__(self):
        rng = random.Random(self.seed)
        starts = self.vocabulary.starts
        rest = self.vocabulary.rest
        # a few texts, read over and over
        texts = []
        for _ in range(256):
            topic = rng.randrange(len(starts) - 40)
            ids = []
            while len(ids) < 56:
                ids.append(starts[topic + rng.randrange(40)])
                ids.extend(rng.choices(rest, k=rng.randint(0, 3)))
            texts.append(torch.tensor(ids[: rng.randint(40, 56)]))
        for _ in range(self.count):
            yield rng.choice(texts)


class MaskingCollator:
    def __init__(self, vocabulary, masking, share=0.15, seed=5):
        self.vocabulary = vocabulary
        self.masking = masking
        self.share = share
        self.rng = random.Random(seed)

    def whole_words(self, ids):
        """True for each position of the words that are chosen: rare ones and long ones, with some chance."""
        pieces = [self.vocabulary.pieces[i] for i in ids]
        words = []
        for position, piece in enumerate(pieces):
            if piece.startswith("##") and words:
                words[-1] = [*words[-1], position]
            else:
                words.append([position])
        budget = max(1, round(len(ids) * self.share))
        ranked = []
        for word in words:
            weight = 0
            for position in word:
                weight += len(pieces[position].removeprefix("##"))
                weight += 4 if pieces.count(pieces[position]) == 1 else 0
            for piece in pieces:
                if piece[:2] == pieces[word[0]][:2]:
                    weight -= 1
            ranked.append((weight * self.rng.random(), word))
        covered = []
        for _, word in sorted(ranked, reverse=True):
            if len(covered) + len(word) <= budget:
                covered.extend(word)
        return [position in covered for position in range(len(ids))]

    def __call__(self, rows):
        inputs = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        if self.masking == "word":
            chosen = torch.zeros_like(inputs, dtype=torch.bool)
            for n, row in enumerate(rows):
                chosen[n, : len(row)] = torch.tensor(self.whole_words(row.tolist()))
        else:
            chosen = (torch.rand(inputs.shape) < self.share) & (inputs != PAD)
        labels = inputs.masked_fill(~chosen, -100)
        return inputs.masked_fill(chosen, MASK), labels


class Encoder(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.place = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids) + self.place[:, : ids.shape[1]]
        return self.layers(x, src_key_padding_mask=ids == PAD)


def train(args):
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    vocabulary = Vocabulary(600, rng)
    loader = DataLoader(
        Sentences(vocabulary, args.steps * args.batch, args.seed),
        batch_size=args.batch,
        collate_fn=MaskingCollator(vocabulary, args.masking),
    )
    model = Encoder(len(vocabulary), args.width, layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    total = 0.0
    for step, (ids, labels) in enumerate(loader, start=1):
        chosen = labels != -100
        logits = model.out(model(ids)[chosen])
        loss = nn.functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 50 == 0:
            print(f"{step} steps, loss {total.item() / 50:.3f}")
            total = 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="updates")
    parser.add_argument("--batch", type=int, default=64, help="sentences in a batch")
    parser.add_argument("--width", type=int, default=48, help="width of the encoder")
    parser.add_argument("--masking", choices=["piece", "word"], default="word", help="the unit that is masked")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=11)
    train(parser.parse_args())
