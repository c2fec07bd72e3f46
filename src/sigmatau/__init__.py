"""Continual learning for PyTorch: task after task, without forgetting, at a few percent a task.

net = sigmatau.APDNet(backbone, budget=0.03)
net.learn("birds", (x, y), (x_val, y_val))
net.predict("birds", x)
net.save("net.st"); sigmatau.load("net.st", backbone)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev4"

# Parts are imported when first used, so that importing the package costs next to nothing.
_WHERE = {
    "APDNet": "sigmatau.methods.apd",
    "load": "sigmatau.methods",
    "register_layer": "sigmatau.core.layout",
    "Hook": "sigmatau.training",
}
__all__ = ["APDNet", "Hook", "__version__", "load", "register_layer"]

if TYPE_CHECKING:
    from sigmatau.core.layout import register_layer
    from sigmatau.methods import load
    from sigmatau.methods.apd import APDNet
    from sigmatau.training import Hook


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'sigmatau' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
