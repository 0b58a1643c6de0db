"""The built site in a headless browser: layout, themes, mathematics, figures, search, console.

Skips without Chromium and its driver.  Screenshots of every kind of page are written to pytest's
temporary folder (`--basetemp FOLDER` keeps them).
"""

import functools
import http.server
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SITE = pathlib.Path(__file__).parents[1] / "_build" / "html"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
# A page of every kind.
PAGES = (
    "index.html",
    "algorithms.html",
    "reproductions.html",
    "reproductions/thesis.html",
    "performance.html",
    "design.html",
    "changelog.html",
    "notebooks/quickstart.html",
    "models_with_state.html",
    "coming_from/index.html",
    "howto/sweeps_and_tuning.html",
    "reference/index.html",
    "reference/fedjax_sim.html",
    "reference/fedjax_sim.algorithms.html",
    "reference/fedjax_sim.theory.html",
    "_modules/fedjax_sim/algorithms/scaffold.html",
    "search.html",
)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of the site on this machine."""
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium without a network other than this machine."""
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("Chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def _resize(browser: webdriver.Chrome, size: tuple[int, int]) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600},
    )


def _errors(browser: webdriver.Chrome) -> list[str]:
    return [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("size", SIZES)
def test_layout(browser, address, tmp_path, page, size):
    _resize(browser, SIZES[size])
    browser.get(f"{address}/{page}")
    for theme in THEMES:
        browser.execute_script("document.body.dataset.theme = arguments[0]", theme)
        browser.save_screenshot(str(tmp_path / f"{theme}.png"))
    assert not _errors(browser)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= SIZES[size][0]
    # Wide tables, formulas and code scroll inside of the page's column.
    outside = browser.execute_script(
        """
        const scrolls = e =>
          e && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
        return [...document.querySelectorAll("article *")]
          .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
          .filter(e => !scrolls(e.parentElement))
          .map(e => e.outerHTML.slice(0, 200));
        """
    )
    assert not outside
    broken = browser.execute_script(
        """
        const images = [...document.images];
        images.forEach(i => i.loading = "eager");
        return Promise.all(images.map(i => i.decode().then(() => "", () => i.src)))
          .then(all => all.filter(Boolean));
        """
    )
    assert not broken


def test_themes_differ_and_text_has_contrast(browser, address):
    _resize(browser, SIZES["desktop"])
    browser.get(f"{address}/algorithms.html")
    colors = {}
    for theme in THEMES:
        browser.execute_script("document.body.dataset.theme = arguments[0]", theme)
        for part in ("article p", "article math", "article td"):
            colors[theme, part] = browser.execute_script(
                """
                const color = getComputedStyle(document.querySelector(arguments[0])).color;
                return [color, getComputedStyle(document.body).backgroundColor]
                  .map(c => c.match(/[\\d.]+/g).slice(0, 3).map(Number));
                """,
                part,
            )
    for text, background in colors.values():
        assert abs(sum(text) - sum(background)) / 3 > 100
    assert colors["light", "article p"] != colors["dark", "article p"]


def test_mathematics_has_a_size(browser, address):
    _resize(browser, SIZES["desktop"])
    browser.get(f"{address}/algorithms.html")
    boxes = browser.execute_script(
        """
        return [...document.querySelectorAll(".math-block math")].map(e => {
          const box = e.getBoundingClientRect();
          return [box.width, box.height];
        });
        """
    )
    assert len(boxes) >= 35
    assert all(width > 20 and height > 10 for width, height in boxes)
    # A fraction is higher than its numerator: the browser lays out MathML.
    heights = browser.execute_script(
        """
        const f = document.querySelector("mfrac");
        return [f, f.firstElementChild].map(e => e.getBoundingClientRect().height);
        """
    )
    assert heights[0] > 1.5 * heights[1]


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("scaffold", "algorithms"),
        ("AUC", "howto/metrics"),
        ("BatchNorm", "models_with_state"),
        ("regression", "your_own"),
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_search_finds(browser, address, size, word, page):
    _resize(browser, SIZES[size])
    browser.get(f"{address}/search.html?q={word}")

    def found(chrome) -> bool:  # results are listed one after the other
        results = chrome.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a")
        return any(page in str(result.get_attribute("href")) for result in results)

    WebDriverWait(browser, 30, ignored_exceptions=[StaleElementReferenceException]).until(found)
    assert not _errors(browser)
