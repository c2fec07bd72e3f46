"""A device for tests: tensors that say they are elsewhere, and refuse to be mixed with others.

What is computed is computed here, on the same processor, so results can be compared to the bit.
What a GPU would not forgive, numbers of two devices in one operation, is an error here too. The
name "meta" stands for it, as the one device besides the CPU that every build of torch has; inside
`elsewhere()` its tensors have numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
# These may read numbers of the CPU, as they may on a GPU.
_MIXED = ("aten::_to_copy", "aten::copy_", "aten::index", "aten::index_put", "aten::index_put_")


class Away(Tensor):
    """A tensor elsewhere; `held` are its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Away:
        made: Away = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, dict(kwargs or {}))

    def tolist(self) -> Any:
        return self.held.tolist()


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, dict(kwargs or {}))


class _Given(TorchFunctionMode):
    """Brings numbers given as Python's there, which torch itself does not for "meta"."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and given.get("device") is not None:
            device = given.pop("device")
            return func(*args, **given, device="cpu").to(device)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            whole, index, *value = args
            index = index if isinstance(index, tuple) else (index,)
            index = tuple(torch.tensor(i) if isinstance(i, list) else i for i in index)
            return func(whole, index, *value)
        return func(*args, **given)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = {id(t.held): t for t in tensors if isinstance(t, Away)}
    here = [t for t in tensors if not isinstance(t, Away) and t.ndim]
    if away and here and func._schema.name not in _MIXED:
        raise RuntimeError(f"{func}: tensors of two devices")
    target = kwargs.get("device")
    if target is not None:
        goes = torch.device(target) == DEVICE
        kwargs["device"] = torch.device("cpu") if goes else target
    else:
        goes = isinstance(args[0], Away) if func._schema.name == "aten::copy_" else bool(away)
    args, kwargs = tree_map(lambda t: t.held if isinstance(t, Away) else t, (args, kwargs))
    found = func(*args, **kwargs)

    def marked(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        return away[id(item)] if id(item) in away else Away(item)

    return tree_map(marked, found) if goes else found


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Let there be another device, and return it."""
    fused = "torch.optim.optimizer._get_fused_kernels_supported_devices"
    with patch(fused, lambda: ["cpu", DEVICE.type]), _Operations(), _Given():
        yield DEVICE
