"""Fine-tuning, EWC and A-GEM against versions of a few lines that share nothing with the library.

They are written from the papers in plain PyTorch: a list of past tasks, a loop over it, and no
trick. All they take from the library are its seeds, so that both see the same samples.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sigmatau import streams
from sigmatau.backbones import mlp
from sigmatau.methods import create

TASKS = [streams.get("digits")[i] for i in range(4)]
EPOCHS, BATCH, LR, STRENGTH, SAMPLES, MEMORY = 3, 20, 0.1, 20.0, 100, 25
SETTINGS = {
    "epochs": EPOCHS,
    "batch_size": BATCH,
    "optimizer": "sgd",
    "lr": LR,
    "lr_decay": 1.0,
    "weight_decay": 0.0,
    "head": None,
}
OWN = {
    "finetune": {},
    "ewc": {"strength": STRENGTH, "fisher_samples": SAMPLES},
    "a-gem": {"memory": MEMORY, "reference": MEMORY},
}


def backbone():
    torch.manual_seed(0)
    return mlp((1, 8, 8), 2, (16,))


def cuts(order):
    """Split an order into batches; a lone last row joins the batch before it."""
    parts = list(order.split(BATCH))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


class Plain:
    """Fine-tuning; the others change the step and remember something."""

    def __init__(self, seed):
        self.net, self.seed = backbone(), seed

    def gradient(self, x, y):
        return torch.autograd.grad(F.cross_entropy(self.net(x), y), list(self.net.parameters()))

    def step(self, x, y):
        for p, g in zip(self.net.parameters(), self.gradient(x, y), strict=True):
            p.data -= LR * g

    def learn(self, name, x, y):
        drawn = torch.Generator().manual_seed(self.seed("shuffle", name))
        for epoch in range(EPOCHS):
            self.begin(name, epoch)
            for rows in cuts(torch.randperm(len(x), generator=drawn)):
                self.step(x[rows], y[rows])
        self.remember(name, x, y)

    def begin(self, name, epoch): ...

    def remember(self, name, x, y): ...


class EWC(Plain):
    """A Fisher and an anchor for each past task, summed at every step."""

    past = ()

    def step(self, x, y):
        for i, (p, g) in enumerate(zip(self.net.parameters(), self.gradient(x, y), strict=True)):
            # The p that minimises <g, p> + |p - p0|^2 / 2lr + strength / 2 sum F (p - anchor)^2
            top = p.data / LR - g + STRENGTH * sum(f[i] * a[i] for f, a in self.past)
            p.data = top / (1 / LR + STRENGTH * sum(f[i] for f, a in self.past))

    def remember(self, name, x, y):
        drawn = torch.Generator().manual_seed(self.seed("fisher", name))
        rows = torch.randperm(len(x), generator=drawn)[:SAMPLES]
        odds = [self.net(x[r]).detach().softmax(1) for r in rows.split(BATCH)]
        labels = torch.cat([torch.multinomial(o, 1, generator=drawn)[:, 0] for o in odds])
        squares = [
            [g**2 for g in self.gradient(x[r : r + 1], label[None])]
            for r, label in zip(rows, labels, strict=True)
        ]
        fisher = [torch.stack(f).mean(0) for f in zip(*squares, strict=True)]
        anchor = [p.detach().clone() for p in self.net.parameters()]
        self.past = (*self.past, (fisher, anchor))


class AGEM(Plain):
    """A memory of each past task, and a projection against a batch of all of them."""

    x = y = torch.empty(0)

    def begin(self, name, epoch):
        self.drawn = torch.Generator().manual_seed(self.seed("draws", name) + epoch)
        self.queue = []

    def step(self, x, y):
        own = self.gradient(x, y)
        if len(self.x):
            self.queue = self.queue or torch.randperm(len(self.x), generator=self.drawn).tolist()
            rows, self.queue = self.queue[:MEMORY], self.queue[MEMORY:]
            past = self.gradient(self.x[rows], self.y[rows])
            product = sum((a * b).sum() for a, b in zip(own, past, strict=True))
            if product < 0:
                length = sum((b * b).sum() for b in past)
                own = [a - product / length * b for a, b in zip(own, past, strict=True)]
        for p, g in zip(self.net.parameters(), own, strict=True):
            p.data -= LR * g

    def remember(self, name, x, y):
        drawn = torch.Generator().manual_seed(self.seed("memory", name))
        rows = torch.randperm(len(x), generator=drawn)[:MEMORY]
        self.x = torch.cat([self.x, x[rows]]) if len(self.x) else x[rows]
        self.y = torch.cat([self.y, y[rows]]) if len(self.y) else y[rows]


@pytest.mark.parametrize(("name", "other"), [("finetune", Plain), ("ewc", EWC), ("a-gem", AGEM)])
def test_another_version_agrees(name, other):
    ours = create(name, backbone(), **SETTINGS, **OWN[name])
    theirs, forgot = other(ours._seed), []
    for i, task in enumerate(TASKS):
        ours.learn(task.name, task.train, progress=False)
        theirs.learn(task.name, *task.train)
        for known in TASKS[: i + 1]:
            x, y = known.test
            with torch.no_grad():
                out = theirs.net(x)
            torch.testing.assert_close(ours.predict(known.name, x), out, rtol=1e-3, atol=1e-3)
            accuracy = (out.argmax(1) == y).double().mean().item()
            assert ours.accuracy(known.name, known.test) == pytest.approx(accuracy, abs=1e-4)
            forgot.append(accuracy)
    # The problem tells the methods apart: one head for four tasks that contradict each other.
    assert min(forgot) < 0.9


def test_the_three_differ():
    nets = [create(name, backbone(), **SETTINGS, **own) for name, own in OWN.items()]
    for net in nets:
        for task in TASKS[:3]:
            net.learn(task.name, task.train, progress=False)
    outs = [net.predict(TASKS[0].name, TASKS[0].test[0]) for net in nets]
    assert (outs[0] - outs[1]).abs().max() > 0.1
    assert (outs[0] - outs[2]).abs().max() > 0.1
