"""The page in a real browser: it renders, stays silent, and answers the mouse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from sigmatau.report.write import write_report

from .made import gallery

DISPARITY = "#split-cifar100-order-disparity"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    return write_report([gallery(folder / "results")], folder / "out").page.as_uri()


@pytest.fixture
def page(browser: Chrome, address: str) -> Iterator[Chrome]:
    browser.get_log("browser")
    browser.get(address)
    browser.execute_script("try { localStorage.clear() } catch {}")
    yield browser
    # Whatever a test did, nothing may have been complained about.
    assert browser.get_log("browser") == []


def until(page: Chrome, script: str, *given: Any) -> Any:
    return WebDriverWait(page, 30, 0.1).until(lambda _: page.execute_script(script, *given))


def show(page: Chrome, selector: str) -> WebElement:
    found = page.find_element(By.CSS_SELECTOR, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    return found


def plot(page: Chrome, figure: str) -> WebElement:
    """Return a figure's first plot, drawn and in view."""
    box = show(page, f"{figure} .plot")
    until(page, "return arguments[0].querySelector('.main-svg') !== null", box)
    return box


def test_every_plot_is_drawn_from_the_page_alone(page: Chrome) -> None:
    boxes = page.find_elements(By.CSS_SELECTOR, "[data-plot]")
    assert len(boxes) == 14
    for box in boxes:
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
        until(page, "return arguments[0].querySelector('.main-svg') !== null", box)
    count = "return performance.getEntriesByType('resource').length"
    assert page.execute_script(count) == 0


def test_hovering_a_point_tells_order_score_and_disparity(page: Chrome) -> None:
    box = plot(page, DISPARITY)
    point = box.find_element(By.CSS_SELECTOR, ".scatterlayer .trace:last-child .point")
    ActionChains(page).move_to_element(point).perform()
    script = "return arguments[0].querySelector('.hoverlayer').textContent"
    told = until(page, script, box)
    assert "order C" in told
    assert "classes 0 to 9" in told
    assert "disparity" in told


def test_a_chip_hides_its_series_in_every_panel_and_brings_it_back(page: Chrome) -> None:
    plot(page, DISPARITY)
    chip = page.find_element(By.CSS_SELECTOR, f'{DISPARITY} [data-name="order B"]')
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' .js-plotly-plot')].map("
        "box => box.data.find(t => t.name === 'order B').visible !== false)"
    )
    assert set(page.execute_script(script, DISPARITY)) == {True}
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert set(page.execute_script(script, DISPARITY)) == {False}
    chip.click()
    assert set(page.execute_script(script, DISPARITY)) == {True}


def test_lines_of_the_table_can_be_hidden(page: Chrome) -> None:
    show(page, ".chips")
    for source, row in (
        ("difference", "tr.difference"),
        ("paper", "tr.paper:not(.absent)"),
        ("absent", "tr.absent"),
    ):
        line = page.find_element(By.CSS_SELECTOR, row)
        button = page.find_element(By.CSS_SELECTOR, f'[data-source="{source}"]')
        assert line.is_displayed()
        button.click()
        assert not line.is_displayed()
        button.click()
        assert line.is_displayed()


def colours(page: Chrome) -> tuple[str, str]:
    script = (
        "return [getComputedStyle(document.body).backgroundColor, "
        "document.querySelector('.js-plotly-plot').layout.font.color]"
    )
    back, text = page.execute_script(script)
    return back, text


def test_light_and_dark_follow_the_system_and_the_button(page: Chrome) -> None:
    plot(page, DISPARITY)
    light = colours(page)
    show(page, "#theme").click()
    dark = colours(page)
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.refresh()  # the choice is remembered
    plot(page, DISPARITY)
    assert colours(page) == dark
    page.execute_script("localStorage.clear()")
    wish = [{"name": "prefers-color-scheme", "value": "light"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
    page.refresh()
    plot(page, DISPARITY)
    assert colours(page) == light
    wish[0]["value"] = "dark"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
    until(page, "return document.documentElement.dataset.theme === 'dark'")
    assert colours(page) == dark
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_run_opens_to_its_accuracy_matrix_and_config(page: Chrome) -> None:
    show(page, ".runs > summary").click()
    run = show(page, "details.run")
    run.find_element(By.TAG_NAME, "summary").click()
    box = run.find_element(By.CSS_SELECTOR, ".matrix")
    until(page, "return arguments[0].querySelector('.heatmaplayer image') !== null", box)
    names = [x.text for x in run.find_elements(By.CSS_SELECTOR, "details > details > summary")]
    assert {"config", "versions", "machine"} <= set(names)


def test_what_failed_is_shown_with_its_trace(page: Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, ".counts .failed a").click()
    failure = page.find_element(By.CSS_SELECTOR, ".failure")
    assert "ewc-C-0" in failure.text
    assert "loss is NaN </script><b>at step 7</b>" in failure.text
    assert "1 failed, 1 missing" in page.find_element(By.CSS_SELECTOR, "table").text


def test_a_phone_scrolls_tables_not_the_page(page: Chrome) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    page.refresh()
    box = plot(page, DISPARITY)
    assert page.execute_script("return document.documentElement.scrollWidth") == 390
    assert 300 < box.size["width"] <= 390
    table = page.find_element(By.CSS_SELECTOR, ".scroll")
    assert page.execute_script("return arguments[0].scrollWidth > 390", table)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
