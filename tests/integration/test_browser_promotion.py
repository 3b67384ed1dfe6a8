"""A promotion and a rollback by hand in MLflow's own UI, as a user does them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.models.registry.mlflow_pages import version_page
from tests.integration.chromium import LOADED_MS, browser, pictures, save
from tests.integration.up import NAME, Up, all_up

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
PROMOTED_SECONDS = 10.0
"""What is promised of a promotion; `make bench` measures how long it takes."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with all_up(tmp_path_factory.mktemp("clicked") / "home") as found:
        found.until_settled(1, 60)
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures"))


def open_version(up: Up, page: "Page", version: int) -> None:
    page.goto("about:blank")  # the UI is one page: only leaving it reads everything again
    page.goto(version_page(up.settings.mlflow_uri(), NAME, version))
    page.get_by_text(f"Version {version}").first.wait_for(timeout=LOADED_MS)


def give_alias(page: "Page", alias: str, picture: Path) -> float:
    """Add an alias to the version whose page is open; return when that was saved."""
    page.get_by_role("button", name="Add").first.click()
    box = page.get_by_role("dialog")
    box.get_by_role("combobox").fill(alias)
    box.get_by_role("combobox").press("Enter")
    box.get_by_text("Add/Edit alias").click()  # closes the list, which covers the button
    save(page, picture)
    box.get_by_role("button", name="Save aliases").click()
    box.wait_for(state="hidden", timeout=LOADED_MS)
    return time.monotonic()


@pytest.mark.parametrize(("version", "name"), [(2, "promotion"), (1, "rollback")])
def test_an_alias_given_by_a_click_is_served_and_the_page_says_so(
    up: Up, folder: Path, version: int, name: str
) -> None:
    assert up.answers() == 3 - version
    with browser() as context:
        page = context.new_page()
        page.set_viewport_size({"width": 1440, "height": 1300})
        open_version(up, page, version)
        saved = give_alias(page, "champion", folder / f"{name}-dialog.png")
        up.seconds_until(version, PROMOTED_SECONDS - (time.monotonic() - saved))
        up.until_settled(version, 30)
        for shown, status in ((version, "live"), (3 - version, "superseded")):
            open_version(up, page, shown)
            tag = page.get_by_text("millrace.status", exact=True)
            row = page.get_by_role("row").filter(has=tag)
            row.get_by_text(status).wait_for(timeout=LOADED_MS)
            page.get_by_text("asked by").first.wait_for(timeout=LOADED_MS)
            row.scroll_into_view_if_needed()
            save(page, folder / f"{name}-{status}.png")
