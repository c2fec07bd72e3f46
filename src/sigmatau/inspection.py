"""Looking at data and network before any work is done, so that mistakes cost nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigmatau.core.layout import HEADS
from sigmatau.data import Batches, TensorBatches
from sigmatau.errors import BackboneError, DataError
from sigmatau.training import Loss

MANY = 10_000  # more classes than this, and than there are rows, are more likely a mistake


@dataclass(frozen=True)
class Facts:
    """What a look at a task's data told: some inputs, the head's width, if there are labels."""

    sample: Tensor
    outputs: int | None
    labels: bool
    highest: int = 0
    targets: Tensor | None = None  # those of the sample


def inspect_data(
    train: Batches, val: Batches | None, outputs: int | None, loss: Loss | None, headless: bool
) -> Facts:
    """Go through the targets once: how many outputs are needed, and is every label in range."""
    if outputs is not None and outputs < 1:
        raise DataError(f"outputs={outputs}: a head needs at least one output")
    seen = _scan(train, "the training data")
    if seen is None:
        raise DataError("the training data is empty")
    sample, y, low, high, rows = seen
    integers = not (y.is_floating_point() or y.is_complex()) and y.ndim == 1
    entropy = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    labels = loss is None or (entropy and integers and low >= 0)
    if labels:
        if not integers:
            raise DataError(
                f"targets are {y.dtype} of shape {tuple(y.shape)}, not class labels (one integer a "
                "sample): pass loss=..., such as torch.nn.functional.mse_loss, or make them labels"
            )
        if outputs is None and not headless:
            weights: Tensor | None = getattr(loss, "weight", None)
            outputs = high + 1 if weights is None else len(weights)
            if weights is None and outputs > max(rows, MANY):
                raise DataError(
                    f"labels go up to {high:,} in {rows:,} rows, and the head has an output for "
                    f"each: number the classes from 0, or pass outputs=..."
                )
        _in_range("the training data", low, high, outputs)
    elif outputs is None and not headless:
        if not y.is_floating_point():
            raise DataError("pass outputs=...: with a loss of your own the head's width is yours")
        outputs = int(y.shape[1]) if y.ndim > 1 else 1
    checked = None
    if val is not None:
        checked = _scan(val, "the validation data")
        if checked is None:
            raise DataError("the validation data is empty: give some, or none at all (val=None)")
        if checked[0].shape[1:] != sample.shape[1:]:
            raise DataError(
                f"validation inputs have shape {tuple(checked[0].shape[1:])}, training inputs "
                f"{tuple(sample.shape[1:])}"
            )
        if labels:
            _in_range("the validation data", checked[2], checked[3], outputs)
    highest = max(high, checked[3]) if val is not None and checked is not None else high
    return Facts(sample, None if headless else outputs, labels, highest if labels else 0, y)


def _scan(data: Batches, what: str) -> tuple[Tensor, Tensor, int, int, int] | None:
    """Return a few inputs, their targets, the least and greatest target, and how many rows."""
    first: tuple[Tensor, Tensor] | None = None
    low, high, rows = 0, 0, 0
    whole = isinstance(data, TensorBatches)
    for x, y in [(data.x, data.y)] if isinstance(data, TensorBatches) else data.ordered():
        if not len(x):
            continue
        if not whole and x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise DataError(f"{what} has inputs that are NaN or infinite: clean or mask them first")
        if first is None:
            first = (x[:2].clone(), y[:2].clone())
            low = high = int(y.reshape(-1)[0])
        low, high = min(low, int(y.min())), max(high, int(y.max()))
        rows += len(x)
    return None if first is None else (*first, low, high, rows)


def _in_range(what: str, low: int, high: int, outputs: int | None) -> None:
    if low < 0 or (outputs is not None and high >= outputs):
        raise DataError(
            f"{what} has labels from {low} to {high}, out of range for "
            f"{'labels from 0' if outputs is None else f'{outputs} classes, 0 to {outputs - 1}'}: "
            "number the classes from 0, or pass outputs=..."
        )


@torch.no_grad()
def check_forward(backbone: nn.Module, head: str | None, facts: Facts, loss: Loss) -> None:
    """Run two samples through network and loss: do they fit, and is the head the last layer?"""
    sample = facts.sample
    called: list[str] = []
    layers = [name for name, module in backbone.named_modules() if isinstance(module, HEADS)]
    told: dict[str, Hook] = {name: lambda *_, name=name: called.append(name) for name in layers}
    try:
        out = _outputs(backbone, sample, told)
    except _FAILURES as error:
        raise misfit("the backbone", sample, error) from error
    if not isinstance(out, Tensor):
        raise BackboneError(
            f"the backbone returns a {type(out).__name__}, not a tensor of outputs: put it in a "
            "module that returns the tensor alone"
        )
    if head is not None and (not called or called[-1] != head):
        last = f"{called[-1]!r} comes last" if called else "no such layer runs"
        raise BackboneError(
            f"the head {head!r} is not the last layer of the network, {last}: name the head with "
            "head=..., or pass head=None to share all layers"
        )
    if head is not None and facts.outputs is not None:
        try:
            out = _outputs(backbone, sample, {head: partial(_widened, facts.outputs)})
        except _FAILURES as error:
            raise BackboneError(
                f"what follows the head {head!r} fails on the {facts.outputs} outputs of this "
                f"task: {error}. Put layers with a width of their own before the head, or pass "
                "the same outputs=... for every task"
            ) from error
    if facts.labels and (out.ndim != 2 or len(out) != len(sample)):
        raise BackboneError(
            f"the backbone turns {len(sample)} rows into outputs of shape {tuple(out.shape)}: "
            f"class labels need ({len(sample)}, classes), a row of scores for each"
        )
    if head is None and facts.labels and facts.highest >= out.shape[1]:
        raise DataError(
            f"labels go up to {facts.highest}, but the network has {out.shape[1]} outputs and with "
            "head=None there are no more: build it with more"
        )
    if not facts.labels:
        check_loss(loss, out, facts)


Hook = Callable[[nn.Module, Any, Tensor], Tensor | None]
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError)


def _outputs(backbone: nn.Module, sample: Tensor, hooks: Mapping[str, Hook]) -> Any:
    """Return what the network says of a sample, with hooks on some of its layers."""
    handles = [backbone.get_submodule(n).register_forward_hook(h) for n, h in hooks.items()]
    was_training = backbone.training
    backbone.eval()
    try:
        return backbone(sample)
    finally:
        backbone.train(was_training)
        for handle in handles:
            handle.remove()


def _widened(outputs: int, head: nn.Module, _: Any, out: Tensor) -> Tensor:
    """Return what a head of so many outputs would give, as to its shape."""
    shape = list(out.shape)
    shape[-1 if isinstance(head, nn.Linear) else 1] = outputs
    return out.new_zeros(shape)


def misfit(what: str, x: Tensor, error: Exception) -> DataError:
    """Return the error for inputs that a network failed on."""
    return DataError(
        f"{what} cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype}: {error}"
    )


def check_loss(loss: Loss, out: Tensor, facts: Facts) -> None:
    """Refuse targets of shape (n,) beside outputs of shape (n, 1), if the loss minds.

    Torch's own losses would spread them, all with all, and only warn of it, or fail.
    """
    if facts.targets is None or facts.outputs is None or out.ndim != 2:
        return
    outputs, targets = out.new_zeros(len(out), facts.outputs), facts.targets
    told = (
        f"having outputs of shape {tuple(outputs.shape)} and targets of shape "
        f"{tuple(targets.shape)}: give targets the shape of the outputs, as with y.unsqueeze(1), "
        "or pass outputs=..."
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        try:
            loss(outputs, targets)
        except UserWarning as warned:
            raise DataError(
                f"the loss would compare all of {len(out)} rows with all, {told}"
            ) from warned
        except Exception as error:  # made-up outputs need not suit a loss that real ones do
            if targets.ndim == 1 and facts.outputs == 1 and _works(loss, outputs, targets[:, None]):
                raise DataError(f"the loss fails, {told}") from error


def _works(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    try:
        loss(outputs, targets)
    except Exception:
        return False
    return True
