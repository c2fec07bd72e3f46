"""A real browser for the page: Chromium from the system's packages, fetched if need be."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PACKAGES = ("chromium", "chromium-driver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,900",
)


def _found() -> tuple[str, str] | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def _install() -> None:
    """Install Chromium, one test run at a time."""
    import fcntl

    with (Path(tempfile.gettempdir()) / "sigmatau-test-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _found():
            return
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        for command in (["apt-get", "update", "-qq"], install):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, check=True, env=quiet, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Return a headless Chromium that keeps its console's log."""
    if _found() is None:
        if getattr(os, "geteuid", lambda: 1)() != 0 or shutil.which("apt-get") is None:
            pytest.skip(
                f"no Chromium: install {' and '.join(PACKAGES)} (only root with apt-get may)"
            )
        _install()
    found = _found()
    assert found is not None, f"{PACKAGES} were installed, but cannot be found"
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found[1]))
    yield driver
    driver.quit()
