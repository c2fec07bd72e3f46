"""HAT's eight image sets, one a task. What is not there is left out, and the name says so."""

from __future__ import annotations

import logging
from pathlib import Path

from sigmatau.errors import FileError
from sigmatau.streams.base import Stream
from sigmatau.streams.hetero import hetero_stream
from sigmatau.streams.registry import register
from sigmatau.streams.sets import SETS
from sigmatau.streams.split import drawn_orders

EIGHT = (
    "cifar10", "cifar100", "mnist", "svhn", "fashion-mnist", "gtsrb", "facescrub", "notmnist",
)  # fmt: skip
log = logging.getLogger(__name__)


@register("hetero8", needs=EIGHT)
def hetero8(*, root: Path, seed: int = 0, val: float = 0.15) -> Stream:
    """CIFAR-10/100, MNIST, SVHN, Fashion-MNIST, GTSRB, FaceScrub, notMNIST; those there are."""
    there = [s for s in EIGHT if not SETS[s].missing(root)]
    if not there:
        raise FileError(
            f"none of hetero8's sets is in {root}: sigmatau data fetch hetero8 downloads them"
        )
    notes = []
    for s in EIGHT:
        if s not in there:
            hint = SETS[s].how_to_get or f"sigmatau data fetch {s} downloads it."
            notes.append(f"{s} is left out: it is not in the data folder. {hint}")
            log.warning("hetero8: %s", notes[-1])
    gone = "".join(f"-no-{s}" for s in EIGHT if s not in there)
    # Drawn over all eight and then thinned, so the others keep their places when one is missing.
    orders = {
        name: [there.index(EIGHT[i]) for i in order if EIGHT[i] in there]
        for name, order in drawn_orders(8, "hetero8").items()
    }
    return hetero_stream(
        f"hetero8{gone}", there, root=root, seed=seed, val=val, orders=orders, notes=notes
    )
