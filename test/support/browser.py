"""Headless Chromium, driven by the DevTools protocol: a page, what it logs, clicks, pictures."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

NAMES = "chromium", "chromium-browser", "google-chrome"  # the last one on GitHub's machines
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE_S = 30.0


class Browser:
    """A browser with one page; a context manager."""

    def __init__(self, width=1280, height=800):
        self.size = (width, height)
        self.errors = []  # that the page logged, and requests to other hosts
        self._ids = itertools.count(1)

    def __enter__(self):
        from websockets.sync.client import connect

        self._folder = tempfile.TemporaryDirectory()
        window = f"--window-size={self.size[0]},{self.size[1]}"
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, window, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        file = Path(self._folder.name) / "DevToolsActivePort"
        wait_for(lambda: file.exists() and len(file.read_text().split()) > 1, "the browser")
        port = file.read_text().split()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        address = next(p["webSocketDebuggerUrl"] for p in pages if p["type"] == "page")
        self._socket = connect(address, max_size=None)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=self.size[0], height=self.size[1],
            deviceScaleFactor=1, mobile=self.size[0] < 600,
        )  # fmt: skip
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self._socket.close()
        self._process.terminate()
        self._process.wait(20)
        with contextlib.suppress(OSError):  # it may still write
            self._folder.cleanup()

    def call(self, method, **parameters):
        """Returns the result of a DevTools method."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(PATIENCE_S))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event):
        kind, about = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:500])
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.errors.append(json.dumps(about["args"])[:500])
        elif kind == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(("http://localhost:", "http://127.0.0.1:", "data:", "blob:")):
                self.errors.append(f"a request to {url}")

    def open(self, url):
        """Opens a page."""
        self.call("Page.navigate", url=url)

    def run(self, script):
        """Returns the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self):
        """Returns the text of the page."""
        return self.run("document.body ? document.body.innerText : ''")

    def click(self, text, tag="button", until=None):
        """Clicks the element with this text, once there is one; again if it moved away.

        until: a text that the click brings.
        """
        if until is None:
            self._click(text, tag)
            return
        end = time.monotonic() + PATIENCE_S
        while until not in self.text():
            assert time.monotonic() < end, f"{text} does not bring {until}"
            self._click(text, tag)
            time.sleep(0.5)

    def _click(self, text, tag):
        found = (
            f"[...document.querySelectorAll({tag!r})].find(e => e.innerText.trim() === {text!r})"
        )
        wait_for(lambda: self.run(f"!!{found}"), f"{tag} {text}")
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        box = f"(e => [e.x + e.width / 2, e.y + e.height / 2])({found}.getBoundingClientRect())"
        x, y = self.run(box)
        for kind in ("mousePressed", "mouseReleased"):  # some controls listen to these alone
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path=None):
        """Returns a screenshot, RGB [h, w, 3]; also writes it to a file."""
        import cv2
        import numpy as np

        data = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        if path is not None:
            Path(path).write_bytes(data)
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]


def wait_for(condition, what, patience_s=PATIENCE_S):
    """Waits until ``condition()`` is true, and returns that value."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {patience_s:g} s for {what}")
