"""A headless Chromium, driven over its DevTools protocol, with which tests read pages as a user sees them."""

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from websockets.sync.client import connect

WIDTH, HEIGHT = 1360, 900
_LIMIT_S = 300.0
"""Ends a wait for a browser or a page that hangs."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """Returns the path in DEERSTALKER_BROWSER, or else of an installed Chromium or Chrome; None if there is none."""
    named = os.environ.get("DEERSTALKER_BROWSER")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser that can reach nothing but this machine.

    Attributes:
        requests: Addresses that pages have requested.
        dialogs: Messages of `alert` and its like, each a sign that a script ran.

    Args:
        names: Host names that resolve to this machine, as an attacker's name server could make them.
    """

    def __init__(self, program: str, folder: Path, *, names: Sequence[str] = ()) -> None:
        self.folder = folder
        self._rules = ", ".join([*(f"MAP {name} 127.0.0.1" for name in names), "MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1"])
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._ids = itertools.count(1)
        self._program = program

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        command = [
            self._program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.folder}",
            "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage", "--no-sandbox",
            "--disable-background-networking", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
            f"--host-resolver-rules={self._rules}", "about:blank",
        ]  # fmt: skip
        with (self.folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self._connect()
        except BaseException:
            self._end()
            raise
        return self

    def _connect(self) -> None:
        port_file = self.folder / "DevToolsActivePort"
        self._until(lambda: port_file.is_file() and port_file.read_text().count("\n") > 0, "a debugging port", _LIMIT_S)
        listing = f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}/json/list"
        pages: list[dict[str, Any]] = []

        def listed() -> bool:  # the port answers before there is a page
            answer = httpx.get(listing, trust_env=False, timeout=_LIMIT_S).json()
            pages[:] = [page for page in answer if page["type"] == "page"]
            return bool(pages)

        self._until(listed, "a page", _LIMIT_S)
        address = pages[0]["webSocketDebuggerUrl"]
        self._socket = connect(address, max_size=None, proxy=None, open_timeout=_LIMIT_S)
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._end()

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def open(self, address: str, *awaited: str, timeout_s: float = _LIMIT_S) -> str:
        """Opens a page, waits until all the awaited words are on it, and returns its visible text."""
        self._call("Page.navigate", url=address)
        return self.wait_for(*awaited, timeout_s=timeout_s)

    def wait_for(self, *awaited: str, timeout_s: float = _LIMIT_S) -> str:
        """Waits until all the awaited words are visible, whatever their case, and returns the visible text."""

        def shown() -> bool:
            found = self.text().lower()
            return all(words.lower() in found for words in awaited)

        self._until(shown, f"{awaited} on the page", timeout_s)
        return self.text()

    def wait_until(self, reached: Callable[[], bool], what: str, timeout_s: float = _LIMIT_S) -> None:
        """Waits for a condition on the page."""
        self._until(reached, what, timeout_s)

    def press(self, words: str) -> None:
        """Presses the innermost element that says just these words."""
        found = f"[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() === {json.dumps(words)})"
        self._until(lambda: bool(self.run(f"{found}.length")), f"{words!r} to press", _LIMIT_S)
        self.run(f"{found}.at(-1).click()")

    def text(self) -> str:
        """Returns the text that a user can read on the page."""
        return self.run("document.readyState === 'loading' || !document.body ? '' : document.body.innerText")

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression on the page; None while the page is changing."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        return found.get("result", {}).get("value", "")

    def wait_for_value(self, script: str) -> Any:
        """Returns the value of the promise that a JavaScript expression makes on the page.

        Raises:
            RuntimeError: It is rejected.
        """
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "rejected"))
        return answer.get("result", {}).get("value")

    def screenshot(self, path: Path) -> None:
        """Saves the page as a PNG, in the size of its content where that is taller than the window."""
        self._call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        tallest = "Math.max(0, ...[...document.querySelectorAll('*')].map(e => e.scrollHeight))"
        height = min(6000, max(HEIGHT, int(self.run(tallest) or 0)))
        self._call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)
        time.sleep(0.5)  # the page lays itself out anew
        shot = self._call("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _until(self, reached: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            assert self._process.poll() is None, f"the browser ended: {(self.folder / 'browser.log').read_text()}"
            shown = self.text()[:3000] if hasattr(self, "_socket") else ""
            assert time.monotonic() < deadline, f"not seen after {timeout_s:.0f} s: {what}; on the page:\n{shown}"
            time.sleep(0.1)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=_LIMIT_S))
            if message.get("id") == number:
                return message.get("result", {})
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            elif message.get("method") == "Page.javascriptDialogOpening":
                self.dialogs.append(message["params"]["message"])
                reply = {"id": next(self._ids), "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                self._socket.send(json.dumps(reply))
