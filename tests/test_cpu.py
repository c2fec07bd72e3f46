"""What is said to the processor and the C library: does it take hold, in all threads?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from sigmatau.cpu import fast_cpu

STEPS = 5
SCRIPT = f"""
import resource, sys
import torch
from sigmatau.backbones import lenet
from sigmatau.cpu import keep_freed
kept = "keep" in sys.argv and keep_freed()
torch.set_num_threads(1)
net, x = lenet(), torch.rand(100, 3, 32, 32)
for step in range(10 + {STEPS}):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    net.zero_grad()
    net(x).sum().backward()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words: str, **variables: str) -> tuple[bool, int]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = told.stdout.split()
    return kept == "True", int(count)


def test_freed_memory_comes_back_without_new_pages() -> None:
    kept, pages = faults("keep")
    assert kept == (platform.libc_ver()[0] == "glibc")
    # Otherwise thousands a step.
    assert pages < 500 * STEPS or not kept


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_says_of_memory_stands(name: str) -> None:
    assert (
        faults("keep", **{name: "glibc.malloc.arena_max=2" if "GLIBC" in name else "2"})[0] is False
    )


def test_subnormal_numbers_are_zero_in_all_threads() -> None:
    script = """
import torch
from sigmatau.cpu import fast_cpu
torch.set_num_threads(2)
with fast_cpu():
    small = torch.full((1 << 20,), 1e-30) * 1e-10
print(int((small.view(torch.int32) != 0).sum()))
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == 0


def test_the_processor_is_left_as_it_was() -> None:
    def flushes() -> bool:
        return sys.float_info.min / 2 == 0

    def used() -> None:
        with fast_cpu():
            assert flushes()
            raise KeyboardInterrupt

    assert not flushes()
    with pytest.raises(KeyboardInterrupt):
        used()
    assert not flushes()
    with fast_cpu():
        with fast_cpu():
            pass
        assert flushes()
