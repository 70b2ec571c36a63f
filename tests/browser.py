"""A real browser, spoken to over a pipe: Chromium without a window and without a driver.

The DevTools protocol as JSON messages, each ended by a zero byte, on file descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT = 60.0


def find() -> str | None:
    """The browser's program; THREEFOLD_BROWSER names another."""
    named = os.environ.get("THREEFOLD_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            if not select.select([self._reader], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                raise EOFError("the browser has gone")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._events.clear()
        self("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def look(self, width: int, height: int, dark: bool = False, media: str = "") -> None:
        """Another window, scheme of colours or medium."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def press(self, key: str) -> None:
        """A key down and up."""
        code = {"Tab": 9, "Enter": 13}[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        """The whole page as it is shown now."""
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """As it is printed."""
        return base64.b64decode(self("Page.printToPDF", printBackground=True)["data"])

    @property
    def complaints(self) -> list[str]:
        """What the console says that is not plain talk."""
        found = []
        for event in self._events:
            values = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(values["exceptionDetails"]["text"])
            elif event["method"] == "Log.entryAdded" and values["entry"]["level"] != "verbose":
                found.append(values["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and values["type"] != "log":
                found.append(str(values["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A tab in a browser of its own, which ends with the block."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]  # fmt: skip
    # The shell puts the pipes at 3 and 4, wherever they are here.
    command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", command, program, *options],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(reader, writer)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)
