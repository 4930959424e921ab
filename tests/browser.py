"""Loads a page in headless Chromium through the DevTools protocol on a pipe, and checks it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
)
# the protocol's pipes are 3 and 4, whatever their numbers here
ON_3_AND_4 = """
import os, sys
for pipe, place in zip(sys.argv[1:3], (100, 101)): os.dup2(int(pipe), place)
for place in (3, 4): os.dup2(place + 97, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
OBSERVE = """JSON.stringify({
  wide: document.documentElement.scrollWidth, shown: document.documentElement.clientWidth,
  pictures: document.images.length, words: document.body.innerText.split(/\\s+/).length,
  broken: [...document.images].filter(x => !x.complete || !x.naturalWidth).map(x => x.src.slice(0, 80)),
  small: [...document.querySelectorAll("p, td, th, li, figcaption")].map(x => parseFloat(getComputedStyle(x).fontSize))
    .reduce((a, b) => Math.min(a, b), 99)})"""


@dataclass
class PageObservation:
    """Observations of a loaded page: widths in pixels, pictures, broken pictures, errors, requested addresses."""

    wide: int
    shown: int
    pictures: int
    broken: list[str]
    words: int
    small: float
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check(self, width: int) -> None:
        """Check that the page has no errors, broken pictures, network requests, horizontal scrolling or small text."""
        assert not self.errors and not self.broken and not self.requests, self
        assert self.shown == width >= self.wide and self.small >= 10 and self.words > 100, self


class Browser:
    """One running browser."""

    def __init__(self, process: subprocess.Popen[bytes], out: Any, back: Any):
        self.process, self.out, self.back, self.number = process, out, back, 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """The result of one call; events before it are stored."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        self.out.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self.out.flush()
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def read(self) -> dict[str, Any]:
        text = b""
        while (byte := self.back.read(1)) != b"\0":
            assert byte, f"the browser ended with status {self.process.wait()}"
            text += byte
        return json.loads(text)

    def observe(self, page: Path, width: int, height: int = 900, picture: Path | None = None) -> PageObservation:
        """Open a file in a window of `width` CSS pixels; wait until it is loaded; `picture` gets a screenshot."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.events.clear()
        self.call("Page.navigate", session, url=page.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())
        result = self.call("Runtime.evaluate", session, expression=OBSERVE)["result"]["value"]
        page_observation = PageObservation(**json.loads(result))
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            entry = parameters.get("entry", parameters)
            if method == "Runtime.exceptionThrown" or "error" in (entry.get("level"), parameters.get("type")):
                page_observation.errors.append(json.dumps(parameters)[:300])
            if method == "Network.requestWillBeSent" and parameters["request"]["url"].startswith("http"):
                page_observation.requests.append(parameters["request"]["url"])
        if picture:
            shot = self.call("Page.captureScreenshot", session, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(shot["data"]))
        self.call("Target.closeTarget", targetId=target)
        return page_observation


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile; skips the test when none is installed."""
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("needs Chromium")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [executable, *SWITCHES, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", ON_3_AND_4, str(to_read), str(from_write), *command],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        with os.fdopen(to_write, "wb") as out, os.fdopen(from_read, "rb") as back:
            chromium = Browser(process, out, back)
            try:
                yield chromium
            finally:
                with contextlib.suppress(Exception):
                    chromium.call("Browser.close")
                process.terminate()
                process.wait(20)
