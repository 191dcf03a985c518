"""A real browser for tests: Debian's chromium, headless, that records what pages complain of and ask for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")


@contextmanager
def opened(url: str, *, width: int = 1280, height: int = 900) -> Iterator[tuple[Any, list[str]]]:
    """A page, and the list of what it did wrong: errors on its console, and requests that leave this machine."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; on Debian: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make setup")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(240_000)  # a busy machine is no mistake of the page
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if _is_local(request.url) else wrong.append(f"asks for {request.url}"))
        page.on("requestfailed", lambda request: None if _was_left(request) else wrong.append(f"misses {request.url}"))
        try:
            page.goto(url)
            yield page, wrong
        finally:
            browser.close()


def _was_left(request: Any) -> bool:
    """Whether the page was left with this still on its way, as a favicon is on a busy machine: not a missing file."""
    return request.failure == "net::ERR_ABORTED"


def _is_local(url: str) -> bool:
    return url.startswith(
        ("file:", "data:", "blob:", "http://127.0.0.1", "http://localhost", "ws://127.0.0.1", "about:")
    )
