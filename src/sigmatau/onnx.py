"""A task's network as an ONNX file, for runtimes that know nothing of PyTorch."""

from __future__ import annotations

import os
import tempfile
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from sigmatau.errors import MissingExtra


def export_onnx(module: nn.Module, example: Tensor, path: str | PathLike[str]) -> None:
    """Write `module` for inputs like `example`, with a batch dimension of any size.

    The file appears whole or not at all.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("onnx and onnxscript", "onnx") from None
    target = Path(path)
    # Two rows: from a batch of one the exporter would conclude that the size is always one.
    inputs = torch.cat([example, example])[:2] if len(example) == 1 else example
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx-") as folder:
        written = Path(folder) / target.name
        torch.onnx.export(
            module.eval(),
            (inputs,),
            written,
            input_names=["input"],
            output_names=["output"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        written.replace(target)
