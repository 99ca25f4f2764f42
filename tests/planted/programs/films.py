# Films people like: factors and a small network on top, trained on pairs of (user, film).
import argparse

import torch
import torch.nn.functional as F

USERS, FILMS, FACTORS = 4000, 1500, 32


def make_ratings(count, generator):
    tastes = torch.randn(USERS, 6, generator=generator)
    genres = torch.randn(FILMS, 6, generator=generator)
    users = torch.randint(USERS, (count,), generator=generator)
    films = torch.randint(FILMS, (count,), generator=generator)
    liked = (tastes[users] * genres[films]).sum(1) + torch.randn(count, generator=generator) > 0
    return users, films, liked.float()


def init(generator):
    def weight(*shape, scale):
        return (torch.randn(*shape, generator=generator) * scale).requires_grad_()

    return {
        "user": weight(USERS, FACTORS, scale=0.1),
        "film": weight(FILMS, FACTORS, scale=0.1),
        "w1": weight(3 * FACTORS, 128, scale=0.1),
        "b1": torch.zeros(128, requires_grad=True),
        "w2": weight(128, 64, scale=0.09),
        "b2": torch.zeros(64, requires_grad=True),
        "w3": weight(64, 1, scale=0.1),
    }


def predict(p, users, films):
    u, f = p["user"][users], p["film"][films]
    h = torch.cat([u, f, u * f], dim=1)
    h = F.relu(h @ p["w1"] + p["b1"])
    h = F.relu(h @ p["w2"] + p["b2"])
    return (h @ p["w3"]).squeeze(1) + (u * f).sum(1)


def hit_rates(logits, liked):
    """Precision and recall of the films that would be recommended."""
    hits = recommended = wanted = 0
    for row in range(len(logits)):
        shown = logits[row].item() > 0
        good = liked[row].item() == 1
        recommended += shown
        wanted += good
        hits += shown and good
    return hits / max(1, recommended), hits / max(1, wanted)


def main(args):
    generator = torch.Generator().manual_seed(args.seed)
    torch.set_num_threads(1)
    users, films, liked = make_ratings(400_000, generator)
    p = init(generator)
    optimizer = torch.optim.Adagrad(p.values(), lr=args.lr)

    for step in range(args.steps):
        rows = torch.randint(len(users), (args.batch_size,), generator=generator)
        logits = predict(p, users[rows], films[rows])
        loss = F.binary_cross_entropy_with_logits(logits, liked[rows])
        loss = loss + args.decay * (p["user"].square().mean() + p["film"].square().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            precision, recall = hit_rates(logits.detach(), liked[rows])
            print(f"{step:5d} loss {loss:.4f} precision {precision:.3f} recall {recall:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=3)
    main(parser.parse_args())
