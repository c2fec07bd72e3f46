"""The step of `learner.py` in one pass over memory, by a small C kernel where a compiler is found.

A step is bound by memory: in tensor code it reads and writes some forty arrays of the weight's
size, in one pass fifteen. The kernel is compiled once a machine, in about a second, and kept in the
user's cache folder. Without a compiler, off the CPU, or with SIGMATAU_FUSED=0 the tensor code is
used instead; the two agree to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import sysconfig
import tempfile
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sigmatau.core.learner import Decomposed

SOURCE = Path(__file__).with_name("fused.c")
# No contraction: theta is composed to the same bits here as in tensor code.
FLAGS = "-O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-signed-zeros"
SERIAL = 1 << 16  # numbers below which threads cost more than they save

log = logging.getLogger(__name__)
_number, _pointer, _real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class Step(ctypes.Structure):
    """What one step of one weight reads and writes; the struct of the same name in C."""

    _fields_ = (
        *((name, _number) for name in ("rows", "channels", "inner", "threads")),
        *((name, _pointer) for name in ("grad", "before", "mask", "support")),
        *((name, _pointer) for name in ("linear", "curvature", "bound")),
        *((name, _pointer) for name in ("theta", "shared", "delta", "mean", "square")),
        *((name, _real) for name in ("even", "lr", "rate", "l1", "decay", "debias", "snap")),
    )


class Near(ctypes.Structure):
    """Entries that have a curve of their own."""

    _fields_ = (
        ("count", _number),
        *((name, _pointer) for name in ("at", "start", "linear", "curvature", "bound")),
        *((name, _pointer) for name in ("centre", "snap", "low", "high")),
    )


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled functions, or None where they cannot be had."""
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("steps are taken in tensor code, which is slower: %s", error)
        return None


def kernel_for(weight: Decomposed) -> Kernel | None:
    """Return a kernel for the steps of this weight, or None if they are for tensor code."""
    if os.environ.get("SIGMATAU_FUSED") == "0":
        return None
    curve = weight.penalty.curve if weight.penalty is not None else None
    parts = [weight.theta, weight.shared, weight.before, weight.delta, weight.logit, weight.support]
    if curve is not None:
        parts += [t for t in (curve.linear, curve.curvature, curve.bound) if isinstance(t, Tensor)]
    fits = all(
        t is None or (t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous())
        for t in parts
    )
    library = _library() if fits else None
    return Kernel(library, weight) if library is not None else None


class Kernel:
    """The two passes that a training step of one weight makes."""

    def __init__(self, library: ctypes.CDLL, weight: Decomposed) -> None:
        self.library, self.weight = library, weight
        shape, out_dim = weight.weight.shape, weight.weight.out_dim
        self.inner = prod(shape[out_dim + 1 :])
        self.rows = prod(shape[: out_dim + 1])
        self.serial = weight.weight.size < SERIAL

    def logits(self, grad: Tensor, mask: Tensor) -> Tensor:
        """Return the gradient of the mask's logits."""
        grad, out = grad.contiguous(), torch.empty_like(mask)
        step = Step(
            rows=self.rows,
            channels=len(mask),
            inner=self.inner,
            grad=grad.data_ptr(),
            mask=mask.data_ptr(),
            shared=self.weight.shared.data_ptr(),
        )
        self.library.sigmatau_logits(ctypes.byref(step), ctypes.c_void_p(out.data_ptr()))
        return out

    def step(self, grad: Tensor, **rates: float) -> None:
        """Take a step at these rates (lr and so on), and write theta."""
        w, mask, grad = self.weight, self.weight.mask, grad.contiguous()
        curve = w.penalty.curve if w.penalty is not None else None
        bends = (
            (None, None, None) if curve is None else (curve.linear, curve.curvature, curve.bound)
        )
        step = Step(
            self.rows,
            w.weight.channels,
            self.inner,
            1 if self.serial else torch.get_num_threads(),
            *map(_address, (grad, w.before, mask, w.support)),
            *map(_address, bends),
            *map(_address, (w.theta, w.shared, w.delta, w.mean, w.square)),
            even=bends[1] if isinstance(bends[1], float) else -1.0,
            snap=0.0 if curve is None else curve.snap,
            **rates,
        )
        near = w.penalty.near if w.penalty is not None else None
        start = w.shared.view(-1)[near[0]] if near is not None else None
        self.library.sigmatau_step(ctypes.byref(step))
        if near is not None:
            at, own = near
            bend = (own.linear, own.curvature, own.bound, own.centre, own.snap)
            entries = Near(len(at), *map(_address, (at, start, *bend, own.low, own.high)))
            self.library.sigmatau_near(ctypes.byref(step), ctypes.byref(entries))


def _address(tensor: Tensor | float | None) -> int | None:
    return tensor.data_ptr() if isinstance(tensor, Tensor) else None


def _built() -> Path:
    """Return the library's file, compiled if this machine has not done so yet."""
    compiler = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
    source = SOURCE.read_bytes()
    told = "\n".join([compiler, FLAGS, platform.machine(), _processor()])
    name = hashlib.sha256(source + told.encode()).hexdigest()[:20]
    path = _folder() / f"step-{name}.so"
    if path.exists():
        return path
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        # Some compilers come without OpenMP's library: one thread is better than none.
        for threads in ("-fopenmp", "-fopenmp-simd"):
            command = [compiler, *FLAGS.split(), threads, "-fPIC", "-shared", str(SOURCE)]
            done = subprocess.run(
                [*command, "-o", draft, "-lm"], capture_output=True, text=True, timeout=120
            )
            if done.returncode == 0:
                os.replace(draft, path)
                return path
        raise OSError(f"{compiler} failed: {done.stderr[-400:]}")
    finally:
        Path(draft).unlink(missing_ok=True)


def _folder() -> Path:
    """Return the cache folder, of the user alone: what lies there is loaded as code."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "sigmatau" / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _processor() -> str:
    """Return what tells processors apart: a cache may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
