"""A network of your own, from the first task to a plain network for serving.

Run it with `.venv/bin/python examples/own_network.py`; it takes a few seconds. The network has what
networks have: convolutions, a shortcut, batch normalisation. Nothing of it is written for sigmatau.
The digits come with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import sigmatau
from sigmatau import streams
from sigmatau.cpu import fast_cpu


class Net(nn.Module):
    """Two convolutions with a shortcut round the second, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.pool = nn.AvgPool2d(2)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.head = nn.Linear(64, 10)  # every task gets one of its own, as wide as it needs

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.pool(torch.relu(x + self.second(x)))
        scores: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
        return scores


def main() -> None:
    torch.set_num_threads(1)  # a network this small only loses by more
    torch.manual_seed(0)
    net = sigmatau.APDNet(Net(), budget=0.05, epochs=10, batch_size=16)
    tasks = list(streams.get("digits"))
    with fast_cpu():
        for task in tasks:
            done = net.learn(task.name, task.train, task.val)  # tensors, a Dataset or a DataLoader
            print(f"learnt {task.name!r}: {done.score:.1%} on validation data, {done.growth:+.1%}")
    print()
    print(net.summary())

    first, second, *_ = tasks
    x, y = second.test
    before = net.predict(second.name, x)
    net.forget(first.name)
    same = torch.equal(net.predict(second.name, x), before)
    print(f"\n{first.name!r} is forgotten; predictions of {second.name!r} are the same: {same}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.st"
        print(f"one file of {net.save(path):,} bytes for {len(net.tasks)} tasks")
        again = sigmatau.load(path, Net())  # the class gives the structure, the file the rest
        print(f"{second.name!r} from the file: {again.accuracy(second.name, second.test):.1%}")
        plain = again.export(second.name)  # a Net with the task's weights, for serving
    agrees = (plain(x).argmax(1) == y).float().mean()
    print(f"{second.name!r} as a plain {type(plain).__name__}: {agrees:.1%}")


if __name__ == "__main__":
    main()
