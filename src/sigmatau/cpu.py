"""What a process can say to its processor and its C library so that training is faster."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# Of mallopt; glibc takes no larger threshold than 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _LARGE, _ALL = -1, -3, 32 << 20, (1 << 31) - 1


@contextmanager
def fast_cpu() -> Iterator[None]:
    """Make training on a CPU faster: `with fast_cpu(): net.learn(...)`.

    Freed memory is kept from here on (`keep_freed`). Inside, numbers below 1e-38, the subnormal
    ones, are zero: a network that has fitted its data is full of them, in its gradients and in
    their squares, and many processors take far longer for one than for any other number. That
    holds for this thread and for those that it starts, also of torch, so enter it before torch has
    started its own.
    """
    keep_freed()
    before = float(torch.tensor(torch.finfo(torch.float32).tiny) / 2) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@cache
def keep_freed() -> bool:
    """Let this process keep the memory it frees, and return whether it does.

    A training step asks for tensors of the same sizes again and again. The C library of Linux gives
    large ones back to the system as soon as they are freed, and each time they come as new pages,
    faulted in and zeroed one by one. Kept, they are there at once. The process then stays as large
    as it has ever been; only what is larger than 32 MiB goes back.

    Where there is another C library, or where its variables (`MALLOC_...`, `GLIBC_TUNABLES`) say
    what it shall do, nothing is changed.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE) and mallopt(_TRIM_THRESHOLD, _ALL))
