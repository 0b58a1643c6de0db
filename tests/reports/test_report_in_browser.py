"""Reports in a headless browser: drawn at the width of a desktop and a phone, without a network.

Skips without Selenium, Chromium and its driver.  Screenshots are in pytest's temporary folder
(``--basetemp FOLDER`` keeps them).
"""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import vl_convert

from fedjax_sim.reports.page import label_columns
from fedjax_sim.reports.page.document import document
from fedjax_sim.reports.page.sources import Source

webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")

pytestmark = pytest.mark.slow

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
NAMES = [
    "<u>first</u>",
    '<b>mine</b> & "another\'s"',
    "a <i>name</i> that is as long as a sentence " * 3,
]


def _sources():
    rng = np.random.default_rng(0)
    metrics = ["test/accuracy", "train/loss", *(f"client/loss/q{q}" for q in (10, 50, 90))]
    rows = [
        (name, seed, 4 * (i == 1 and seed == 1), r, metric, rng.uniform(0.1, 0.2) + m / (r + 1))
        for i, name in enumerate(NAMES)
        for seed in range(3)
        for r in range(0, 10, 2)
        for m, metric in enumerate(metrics)
    ]
    rows += [(name, s, 0, r, "bits", 1e9 * r) for name in NAMES for s in (0, 1, 2)
             for r in range(0, 10, 2)]  # fmt: skip
    columns = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]
    history = pd.DataFrame(rows, columns=columns)
    history.loc[(history["algorithm"] == NAMES[1]) & (history["seed"] == 1), "diverged_at"] = 4
    clients = pd.DataFrame(
        [(name, 0, r, c, "train", 3, rng.uniform()) for name in NAMES for r in (0, 8)
         for c in range(9)],
        columns=["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"],
    )  # fmt: skip
    labels = pd.DataFrame(label_columns(rng.integers(0, 4, (60, 10))))
    comparison = Source(
        "comparison", history, clients=clients, labels=labels,
        command="fedjax-sim run a/config.json", environment={"versions": {"jax": "1"}}, name="a",
    )  # fmt: skip
    grid = pd.DataFrame(
        [(lr, steps, seed, 3 * (lr > 1), 4, "test/accuracy", rng.uniform())
         for lr in (0.01, 0.1, 1.0, 2.0) for steps in (1, 2, 4) for seed in range(3)],
        columns=["lr", "steps", *columns[1:]],
    )  # fmt: skip
    return [comparison, Source("sweep", grid, name="<s>b</s>")]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(document(_sources(), vl_convert.javascript_bundle()))
    return path


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium without a network."""
    programs = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    program, driver = next(programs, None), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--host-resolver-rules=MAP * ~NOTFOUND"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def _open(browser, page, size):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600},
    )
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(f"file://{page}")
    _drawn(browser, "document.body.dataset.drawn === 'true'")


def _drawn(browser, condition):
    support = pytest.importorskip("selenium.webdriver.support.ui")
    support.WebDriverWait(browser, 60).until(lambda b: b.execute_script(f"return {condition}"))


@pytest.mark.parametrize("size", SIZES)
def test_is_drawn_without_errors_and_without_a_network(browser, page, tmp_path, size):
    _open(browser, page, SIZES[size])
    browser.save_screenshot(str(tmp_path / f"{size}.png"))
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in requests if not url.startswith("data:")} == {f"file://{page}"}
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('figure canvas')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.right, b.height]; })"
    )
    assert len(boxes) == 7  # two of curves; bands, shares, map, sensitivity, grid
    assert all(height > 100 and left >= 0 for left, _, height in boxes)
    assert max(right for _, right, _ in boxes) <= SIZES[size][0]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]


def test_choices_change_the_curves(browser, page):
    _open(browser, page, SIZES["desktop"])
    text = browser.execute_script(
        """
        const figure = document.querySelector("figure");
        const picture = () => figure.querySelector("canvas").toDataURL();
        const redrawn = before => new Promise(done => {
          const wait = () => picture() === before ? setTimeout(wait, 20) : done(picture());
          wait();
        });
        const [metric, axis] = figure.querySelectorAll("select");
        const boxes = figure.querySelectorAll("input");
        const seen = [picture()];
        const act = async change => { change(); seen.push(await redrawn(seen.at(-1))); };
        const choose = (list, i) => () => {
          list.value = i; list.dispatchEvent(new Event("change"));
        };
        return (async () => {
          await act(choose(metric, 1));
          await act(choose(axis, 1));
          await act(() => boxes[0].click());
          await act(() => boxes[1].click());
          await act(() => document.querySelector(".methods button").click());
          return [new Set(seen).size, axis.selectedOptions[0].text];
        })();
        """
    )
    assert text == [6, "bits sent"]
    assert browser.get_log("browser") == []


def test_values_appear_under_the_pointer(browser, page):
    _open(browser, page, SIZES["desktop"])
    actions = pytest.importorskip("selenium.webdriver").ActionChains(browser)
    canvas = browser.find_element("css selector", "figure canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    actions.move_to_element(canvas).perform()
    _drawn(browser, "document.querySelector('#vg-tooltip-element.visible') !== null")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#vg-tooltip-element tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText))"
    )
    values = dict(rows)
    assert list(values) == ["method", "round", "mean", "band from", "to"]
    names = browser.execute_script(
        "return JSON.parse(document.getElementById('data').textContent).methods.map(m => m.label)"
    )
    assert values["method"] in names
    assert float(values["band from"]) <= float(values["mean"]) <= float(values["to"])
