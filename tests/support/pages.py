"""Reads Prefect's pages of a run named `tiny`."""

from typing import Any

from tests.support.browser import Browser
from tests.support.prefect_server import prefect_api

KEYS = (
    "tiny-accuracy",
    "tiny-batch",
    "tiny-completions",
    "tiny-evaluate-greedy",
    "tiny-evaluate-sampled",
    "tiny-finetune",
    "tiny-iterations",
    "tiny-plots",
    "tiny-sample",
    "tiny-seconds",
    "tiny-store",
    "tiny-summary",
)


def versions(server: str, key: str) -> list[dict[str, Any]]:
    """All versions of an artifact, the newest last."""
    asked = {"artifacts": {"key": {"any_": [key]}}}
    found = prefect_api(f"{server}/api", "POST", "/artifacts/filter", asked)
    return sorted(found, key=lambda artifact: artifact["created"])


def open_newest(browser: Browser, server: str, key: str, *awaited: str) -> str:
    newest = versions(server, key)[-1]
    return browser.open(f"{server}/artifacts/artifact/{newest['id']}", key, "Show raw data", *awaited)


def publish(server: str, key: str, text: str) -> None:
    prefect_api(f"{server}/api", "POST", "/artifacts/", {"key": key, "type": "markdown", "data": text})


def asked_by_text(browser: Browser) -> list[str]:
    """Returns the addresses that hostile texts made the page request."""
    return [address for address in browser.requests if "beacon" in address or address.endswith("/x")]


def pictures(browser: Browser) -> list[int]:
    """Widths of the pictures on the page, 0 where one is broken."""
    script = "[...document.querySelectorAll('main img, .p-markdown-renderer img, img')].map(i => i.naturalWidth)"
    return browser.run(script)
