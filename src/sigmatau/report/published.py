"""The paper's own figures, as data: what a table of ours is set beside.

Source: Yoon, Kim, Yang and Hwang, "Scalable and Order-robust Continual Learning with Additive
Parameter Decomposition", ICLR 2020. All numbers in %, capacity in % of one base network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAPER = "Yoon et al., ICLR 2020"


@dataclass(frozen=True)
class Published:
    """A row of a table of the paper.

    `method` is our name for it; `when` are settings that a run of ours must have to be compared
    with this row (the paper's ablations are settings of one method). `orders` are our names of the
    one order it was made with, where the paper does not average over orders.
    """

    name: str
    method: str
    capacity: float
    accuracy: float
    sd: float | None = None
    aopd: float | None = None
    mopd: float | None = None
    forgetting_average: float | None = None
    forgetting_worst: float | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    orders: tuple[str, ...] = ()
    tasks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What the paper says about one stream."""

    source: str
    tasks: int
    rows: tuple[Published, ...]
    note: str = ""

    @property
    def per_order(self) -> bool:
        """Return whether the paper gives each order a row of its own."""
        return any(row.orders for row in self.rows)


_PIXELS = (
    "The authors' reader laid CIFAR's channel-first pixels out without a transpose, so the paper's "
    "CIFAR figures were made on scrambled images; ours are read properly. Compare the distance to "
    "STL, not the absolute figures."
)

_SPLIT = (
    Published("STL", "stl", 1000, 63.75, 0.14, 0.98, 2.23),
    Published("L2T", "l2t", 100, 48.73, 0.66, 8.62, 17.77),
    Published("EWC", "ewc", 100, 53.72, 0.56, 7.06, 15.37),
    Published("P&C", "pc", 100, 53.54, 1.70, 6.59, 11.80),
    Published("PGN", "pgn", 171, 54.90, 0.92, 8.08, 14.63),
    Published("DEN", "den", 181, 57.38, 0.56, 8.33, 13.67),
    Published("RCL", "rcl", 181, 55.26, 0.13, 5.90, 11.50),
    Published("APD-Fixed", "apd-fixed", 132, 59.32, 0.44, 2.43, 4.03),
    Published("APD-Fixed, larger", "apd-fixed", 175, 61.02, 0.31, 2.26, 2.87),
    Published("APD(1)", "apd1", 134, 59.93, 0.41, 2.12, 3.43),
    Published("APD(1), larger", "apd1", 170, 61.30, 0.37, 1.57, 2.77),
    Published("APD(2)", "apd2", 135, 60.74, 0.21, 1.79, 3.43),
    Published("APD(2), larger", "apd2", 153, 61.18, 0.20, 1.86, 3.13),
    Published(
        "APD(1) without sparsity", "apd1", 1084, 63.47, None, 3.20, 5.40, when={"sparse": False}
    ),
    Published("APD(1) without mask", "apd1", 168, 59.09, None, 1.83, 3.47, when={"mask": False}),
    Published(
        "APD(1), fixed sigma", "apd1", 167, 58.55, None, 2.31, 3.53, when={"shared": "fixed"}
    ),
)

_SUPERCLASS = (
    Published("STL", "stl", 2000, 61.00, 0.20, 2.31, 3.33),
    Published("L2T", "l2t", 100, 41.40, 0.99, 8.59, 20.08),
    Published("EWC", "ewc", 100, 47.78, 0.74, 9.83, 16.87),
    Published("P&C", "pc", 100, 48.42, 1.39, 9.05, 20.93),
    Published("PGN", "pgn", 271, 50.76, 0.39, 8.69, 16.80),
    Published("DEN", "den", 191, 51.10, 0.77, 5.35, 10.33),
    Published("RCL", "rcl", 184, 51.99, 0.25, 4.98, 14.13),
    Published("APD-Fixed", "apd-fixed", 128, 55.75, 1.01, 3.16, 6.80),
    Published("APD-Fixed, larger", "apd-fixed", 191, 57.98, 0.65, 2.58, 4.53),
    Published("APD(1)", "apd1", 133, 56.76, 0.27, 3.02, 6.20),
    Published("APD(1), larger", "apd1", 191, 58.37, 0.22, 2.64, 5.47),
    Published("APD(2)", "apd2", 130, 56.81, 0.33, 2.85, 5.73),
    Published("APD(2), larger", "apd2", 182, 58.53, 0.31, 2.75, 5.67),
)

_OMNIGLOT = (
    Published("STL", "stl", 10000, 82.13, 0.08, 2.79, 5.70),
    Published("L2T", "l2t", 100, 63.46, 1.58, 13.35, 24.43),
    Published("L2T, large net", "l2t", 1599, 64.65, 1.76, 11.35, 27.23),
    Published("EWC", "ewc", 100, 67.48, 1.39, 14.92, 32.93),
    Published("EWC, large net", "ewc", 1599, 68.66, 1.92, 15.19, 40.43),
    Published("PGN", "pgn", 1045, 73.65, 0.27, 6.79, 19.27),
    Published("PGN, larger", "pgn", 1543, 79.35, 0.12, 4.52, 10.37),
    Published("APD(2)", "apd2", 649, 81.20, 0.62, 4.09, 9.44),
    Published("APD(2), larger", "apd2", 943, 81.60, 0.53, 3.78, 8.19),
)

_PERMUTED = (
    Published("STL", "stl", 1700, 95.33, forgetting_average=0.0, forgetting_worst=0.0),
    Published("GEM", "gem", 100, 89.50, forgetting_average=6.0, forgetting_worst=10.0),
    Published("S-GEM", "s-gem", 100, 88.20, forgetting_average=8.0),
    Published("A-GEM", "a-gem", 100, 89.10, forgetting_average=6.0, forgetting_worst=13.0),
    Published("APD(1)", "apd1", 103, 90.67, forgetting_average=2.0, forgetting_worst=5.1),
    Published("APD(1), larger", "apd1", 115, 92.83, forgetting_average=1.8, forgetting_worst=4.7),
)

_EIGHT = (
    Published("HAT", "hat", 100, 80.36, 1.2, 7.95, 23.15, 0.14, 0.50),
    Published("HAT-Large", "hat", 182, 81.83, 1.1, 6.78, 17.27, 0.13, 0.57),
    Published("APD-Fixed", "apd-fixed", 181, 82.42, 0.5, 2.09, 4.40, 0.03, 0.06),
)

DOWN, UP = ("A", "down"), ("B", "up")


def _three(
    name: str,
    method: str,
    megabytes: float,
    average: float,
    svhn: float,
    cifar10: float,
    cifar100: float,
    orders: tuple[str, ...] = (),
) -> Published:
    # The paper gives sizes in MB; one base network has 57.
    capacity = round(100 * megabytes / 57, 1)
    tasks = {"svhn": svhn, "cifar10": cifar10, "cifar100": cifar100}
    return Published(name, method, capacity, average, orders=orders, tasks=tasks)


_THREE = (
    _three("STL", "stl", 171, 85.1, 96.8, 91.3, 67.2),
    _three("L2T, down", "l2t", 57, 27.2, 10.7, 41.4, 29.6, DOWN),
    _three("L2T, up", "l2t", 57, 45.5, 88.4, 35.8, 12.2, UP),
    _three("Piggyback, down", "piggyback", 59, 73.9, 96.8, 83.6, 41.2, DOWN),
    _three("Piggyback, up", "piggyback", 59, 84.8, 96.4, 90.8, 67.2, UP),
    _three("PGN, down", "pgn", 64, 74.7, 96.8, 85.8, 41.6, DOWN),
    _three("PGN, up", "pgn", 64, 83.7, 96.2, 87.7, 67.2, UP),
    _three("APD(1), down", "apd1", 63, 83.0, 96.8, 90.1, 61.1, DOWN),
    _three("APD(1), up", "apd1", 65, 85.0, 96.8, 91.0, 67.2, UP),
)

BENCHMARKS: Mapping[str, Benchmark] = {
    "split-cifar100": Benchmark(f"{PAPER}, tables 1, A.1 and A.4", 10, _SPLIT, _PIXELS),
    "superclass-cifar100": Benchmark(f"{PAPER}, tables 1 and A.4", 20, _SUPERCLASS, _PIXELS),
    "omniglot-rotation": Benchmark(f"{PAPER}, figure 6", 100, _OMNIGLOT),
    "permuted-mnist": Benchmark(
        f"{PAPER}, table A.2 (rows of GEM, S-GEM and A-GEM: Chaudhry et al., ICLR 2019)",
        17,
        _PERMUTED,
    ),
    "hetero8": Benchmark(f"{PAPER}, table A.3", 8, _EIGHT),
    "hetero3": Benchmark(
        f"{PAPER}, table 2",
        3,
        _THREE,
        "Capacities of the paper's lines are its model sizes over 57 MB, that of one network.",
    ),
}
