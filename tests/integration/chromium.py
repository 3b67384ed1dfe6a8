"""Headless Chromium, which reaches nothing but this machine, and the pictures that it takes."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)
HERE = ("127.0.0.1", "localhost", None)  # None: data: and blob:
DRAWN_MS = 1_500
LOADED_MS = 60_000


@contextmanager
def browser() -> Iterator["BrowserContext"]:
    """Run Chromium with a fresh profile; a request to any host but this one fails the test."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "install Chromium, or run the tests without -m browser"
    requested: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = chromium.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(LOADED_MS)
        context.on("request", lambda request: requested.append(request.url))
        yield context
        chromium.close()
    assert [url for url in requested if urlsplit(url).hostname not in HERE] == []


def picture(page: "Page", url: str, file: Path, *texts: str) -> None:
    """Open `url`, wait until each of `texts` can be seen, and save a picture."""
    page.goto(url)
    for text in texts:
        page.get_by_text(text).first.wait_for(timeout=LOADED_MS)
    save(page, file)


def log_in(page: "Page", prefect: str, login: str) -> None:
    """Give Prefect's page the password, as a user does."""
    page.goto(f"{prefect}/login")
    page.locator("input[type=password]").fill(login)
    page.get_by_role("button", name="Login").click()
    page.wait_for_url(lambda url: "/login" not in url, timeout=LOADED_MS)


def save(page: "Page", file: Path) -> None:
    page.wait_for_timeout(DRAWN_MS)  # charts are drawn after their text; both UIs poll for ever
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file)


def pictures(otherwise: Path) -> Path:
    """Return the folder that takes the pictures: `MILLRACE_SCREENSHOTS`, or another."""
    return Path(os.environ.get("MILLRACE_SCREENSHOTS") or otherwise)
