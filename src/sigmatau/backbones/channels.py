"""Images with the channels of a pixel side by side in memory, the order that a CPU is fast in.

Only the order in memory is another: shapes and values are the same. Convolutions and pooling keep
to the order of what they read, so the first layer of a network settles it.
"""

from __future__ import annotations

from torch import Tensor, nn


class ChannelsLast(nn.Module):
    """Lay images out so, grey ones too: torch would take any strides of a single channel for right.

    In steps that `vmap` knows, and without a copy where they lie so already.
    """

    def forward(self, x: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).flatten(2)
        return rows.view(count, height, width, channels).permute(0, 3, 1, 2)
