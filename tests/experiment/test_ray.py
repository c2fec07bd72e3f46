from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from sigmatau.errors import ConfigError
from sigmatau.experiment.engines.local import Local
from sigmatau.experiment.engines.ray import Ray
from sigmatau.experiment.grid import run_grid
from tests.experiment.conftest import tiny_recipe
from tests.experiment.test_grid import assassin, results


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of its own processes, as `ray start` makes it, reached by its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(Path(sys.executable).with_name("ray"))
    options = ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    # With --block it is one process, which takes its own children along when it ends; `ray stop`
    # would end every Ray on the machine.
    head = subprocess.Popen(
        [script, "start", "--head", "--block", f"--port={port}", "--num-cpus=2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where Ray has once run by itself it left a token, and would ask everybody for it.
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    assert head.stdout is not None
    for line in head.stdout:
        if "Ray runtime started" in line:
            break
    else:
        pytest.fail("ray start ended before it was up")
    yield f"127.0.0.1:{port}"
    ray.shutdown()
    head.terminate()
    head.communicate(timeout=120)


def test_a_cluster_that_loses_a_worker_gives_what_this_machine_gives(
    tmp_path: Path, cluster: str
) -> None:
    recipe = tiny_recipe(methods=["apd1"], orders=["A", "B", "C"], settings={"epochs": 30})
    engine = Ray(cluster)
    with assassin(
        tmp_path / "ray", lambda name, before: name == "apd1-B-0" and not before
    ) as killed:
        summary = run_grid(recipe, tmp_path / "ray", engine)
    assert killed == ["apd1-B-0"]
    assert (summary.done, summary.failed) == (3, ())
    run_grid(recipe, tmp_path / "local", Local(1))
    assert results(tmp_path / "ray", recipe) == results(tmp_path / "local", recipe)
    ray.shutdown()


def test_no_cluster_there() -> None:
    with pytest.raises(ConfigError, match="ray start --head"):
        Ray("127.0.0.1:1")
