"""The report page in a real Chromium: run with ``pytest -m browser``.

With ``DDN_WRITE_PICTURES=1`` it writes the manual's screenshots, which are in ``docs/pictures``.
"""

import base64
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from made_up import made_up_run
from odd_names import EVIL
from PIL import Image

from ddn_lightning.cli import main

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
MOST_BYTES = 150_000  # of a screenshot
METHODS = (["--model=ER"], ["--model=ER", "--model.distiller=DataDistillNet"], ["--model=DERPlusPlus"])

# the contrast of each text with its background, by WCAG 2.2, and the start of the text
CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = (rgb) => {
  const [r, g, b] = rgb.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let here = element; here; here = here.parentElement) {
    const colour = parse(getComputedStyle(here).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.checkVisibility())
  .map((e) => {
    const [a, b] = [luminance(parse(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), `${e.tagName} ${e.textContent.trim().slice(0, 30)}`];
  });
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason='no selenium: pip install -e ".[browser]"')
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def show(chromium: Any, report_file: Path) -> Any:
    def in_size(width: int = 1280, scheme: str = "light", file: Path = report_file) -> Any:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        chromium.get(file.as_uri())
        return chromium

    return in_size


@pytest.fixture(scope="module")
def hundred_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of made-up runs of two methods with a hundred classes, with long names of folders."""
    folder = tmp_path_factory.mktemp("hundred")
    for plugin in (None, "DataDistillNet"):
        made_up_run(folder / "runs" / f"offline-cifar100-c10-500-{plugin}-seed0-c5b6efa4", plugin=plugin)
    assert main(["report", str(folder / "runs"), "-o", str(folder / "page.html")]) == 0
    return folder / "page.html"


def column(browser: Any, title: str) -> list[str]:
    table = browser.find_element("css selector", "table.sortable")
    headings = [cell.text.split()[0] for cell in table.find_elements("css selector", "thead th")]
    number = headings.index(title) + 1
    cells = table.find_elements("css selector", f"tbody tr > :nth-child({number})")
    return [cell.text for cell in cells]


def heading(browser: Any, title: str) -> Any:
    (found, *_) = browser.find_elements("xpath", f"//th[button[normalize-space()='{title}']]")
    return found


def test_the_page_loads_without_errors_and_with_all_images(show: Any) -> None:
    browser = show()
    assert browser.get_log("browser") == []
    widths = browser.execute_script("return [...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(widths) > 20
    assert all(width > 100 for width in widths)
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert [address for address in fetched if not address.startswith("data:")] == []


def test_clicking_a_heading_sorts_the_table(show: Any) -> None:
    browser = show()
    accuracy = heading(browser, "ACC")
    accuracy.find_element("css selector", "button").click()
    values = [float(text) for text in column(browser, "ACC")]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)
    assert accuracy.get_attribute("aria-sort") == "descending"
    accuracy.find_element("css selector", "button").send_keys("\n")  # by keyboard
    assert [float(text) for text in column(browser, "ACC")] == sorted(values)
    assert accuracy.get_attribute("aria-sort") == "ascending"
    heading(browser, "Run").find_element("css selector", "button").click()
    assert column(browser, "Run") == [EVIL, "cifar", "ddn", "er", "narrow"]
    assert accuracy.get_attribute("aria-sort") is None
    published = heading(browser, "published").find_element("css selector", "button")
    for _ in range(2):
        published.click()
        assert column(browser, "published")[0] == "36.05"  # unknown values stay last


def test_a_script_in_a_name_is_shown_as_text(show: Any) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    browser = show()
    with pytest.raises(NoAlertPresentException):
        browser.switch_to.alert  # noqa: B018
    assert EVIL in column(browser, "Run")
    assert browser.find_elements("css selector", "img[onerror], table script") == []


def test_a_link_opens_its_run(show: Any) -> None:
    browser = show()
    details = browser.find_element("css selector", "details[id]:not([open])")
    browser.find_element("css selector", f"a[href='#{details.get_attribute('id')}']").click()
    assert details.get_attribute("open") is not None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_legible_on_a_phone_and_in_dark_mode(show: Any, width: int, scheme: str) -> None:
    browser = show(width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width  # no sideways scrolling
    contrasts = browser.execute_script(CONTRASTS)
    assert len(contrasts) > 50
    assert [found for found in contrasts if found[0] < 4.5] == []
    shades = shades_of_a_figure(browser)
    background, darkest, brightest = numpy.median(shades), shades.min(), shades.max()
    assert (background < 60 and brightest > 200) if scheme == "dark" else (background > 240 and darkest < 60)


def shades_of_a_figure(browser: Any) -> Any:
    figure = browser.find_element("css selector", "figure img")
    with Image.open(io.BytesIO(figure.screenshot_as_png)) as picture:
        return numpy.asarray(picture.convert("L"))


def test_the_page_prints_black_on_white(show: Any) -> None:
    browser = show(1280, "dark")
    assert base64.b64decode(browser.print_page()).startswith(b"%PDF")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    shades = shades_of_a_figure(browser)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert numpy.median(shades) > 240
    assert shades.min() < 60


def test_a_phone_scrolls_wide_figures_and_shrinks_no_letters_below_half(show: Any, hundred_classes: Path) -> None:
    browser = show(390, file=hundred_classes)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390  # not the page itself
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure')].filter((f) => f.checkVisibility()).map((f) => ["
        "f.classList.contains('wide'), f.querySelector('.scroll').scrollWidth, f.querySelector('.scroll').clientWidth,"
        "f.querySelector('img').getBoundingClientRect().width / Number(f.querySelector('img').getAttribute('width'))])"
    )
    wide = [one for one in figures if one[0]]
    assert len(wide) >= 3
    assert all(content > 1.2 * visible for _, content, visible, _ in wide)
    assert all(content <= visible + 1 for is_wide, content, visible, _ in figures if not is_wide)
    assert min(scale for *_, scale in figures) > 0.5


def test_two_figures_stand_side_by_side_on_a_desk(show: Any, hundred_classes: Path) -> None:
    browser = show(1280, file=hundred_classes)
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('details[open] .figures')].map((group) => "
        "[...group.querySelectorAll('figure:not(.wide)')].map((f) => f.getBoundingClientRect().right))"
    )
    assert len(boxes) == 2
    for rights in boxes:
        alone = sum(right < 700 for right in rights) - sum(right > 700 for right in rights)
        assert alone <= 1  # at most one, where the number is odd


def test_the_pictures_of_the_manual_are_taken_from_a_page_of_three_methods(show: Any, tmp_path: Path) -> None:
    fit = ["fit", "-c", str(ROOT / "configs/quickstart.yaml"), "--data.epochs_per_task=2", "--runs", "runs"]
    for seed in (1, 2):
        for method in METHODS:
            assert main([*fit, *method, f"--seed_everything={seed}", "--trainer.enable_progress_bar=false"]) == 0
    assert main(["report", "runs", "-o", "page.html"]) == 0
    folder = ROOT / "docs/pictures" if os.environ.get("DDN_WRITE_PICTURES") else tmp_path
    compared = "[aria-labelledby=compared] figure"
    for name, width, first, end in (
        ("page_runs", 1280, "h1", "#compared"),
        ("page_compared", 1280, "#compared", f"{compared}:nth-of-type(4)"),
        ("page_phone", 390, "#compared", f"{compared}:nth-of-type(3)"),
    ):
        browser = show(width, file=tmp_path / "page.html")
        top, bottom = (browser.find_element("css selector", place).rect["y"] - 8 for place in (first, end))
        clip = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
        command = {"captureBeyondViewport": True, "clip": clip}
        content = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", command)["data"])
        with Image.open(io.BytesIO(content)) as picture:
            picture.convert("RGB").quantize(64).save(folder / f"{name}.png", optimize=True)
        assert (folder / f"{name}.png").stat().st_size < MOST_BYTES
