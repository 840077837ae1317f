"""A real browser, headless, driven through the devtools protocol over a pipe: no port, no package.

`Browser` starts Debian's chromium; `Page` opens addresses, evaluates JavaScript, presses keys, takes screenshots, and
keeps every request that the page made. No name but loopback's is resolved.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["BROWSER", "Browser"]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE_S = 60.0
KEYS = {"PageDown": 34, "PageUp": 33, "End": 35, "Home": 36, "Enter": 13, "Escape": 27, "Tab": 9}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "/": 191}


class Browser:
    """One browser with one page. A context manager."""

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 900), *flags: str) -> None:
        (here, theirs), (answers, written) = os.pipe(), os.pipe()
        # it reads from descriptor 3 and writes to 4
        shell = f'exec "$0" "$@" 3<&{here} 4>&{written}'
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--disable-features=SpareRendererForSitePerProcess,BackForwardCache,Translate,MediaRouter,OptimizationHints",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--mute-audio",
            "--autoplay-policy=no-user-gesture-required",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={size[0]},{size[1]}",
            "--remote-debugging-pipe",
            *flags,
            "about:blank",
        ]
        assert BROWSER is not None
        self._process = subprocess.Popen(
            ["bash", "-c", shell, BROWSER, *options],
            pass_fds=(here, written),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(here)
        os.close(written)
        self._out, self._in = theirs, answers
        self._rest, self._id = b"", 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._session: str | None = None
        try:
            self._attach(size)
        except BaseException:
            self.close()
            raise

    def _attach(self, size: tuple[int, int]) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{room}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )

    def call(self, method: str, **parameters: Any) -> Any:
        """Asks the browser, and waits for its answer."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE_S)[0], "the browser does not answer"
            data = os.read(self._in, 2**20)
            assert data, "the browser is gone"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and "Content Security Policy" in event["params"]["entry"]["text"]:
            self.errors.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str) -> Any:
        """Waits until an expression is true; its value."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, 0.01
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; the page: {self.run('document.body.innerText')}"
            time.sleep(pause_s)
            pause_s = min(0.1, 1.5 * pause_s)  # every look costs the page time
        return value

    def press(self, *keys: str) -> None:
        """Presses keys, one after the other; a letter is typed."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
            facts: dict[str, Any] = {"key": key, "code": key if len(key) > 1 else ""}
            if key in KEYS:
                facts["windowsVirtualKeyCode"] = KEYS[key]
            down = {"type": "keyDown", **facts} if text is None else {"type": "keyDown", "text": text, **facts}
            self.call("Input.dispatchKeyEvent", **down)
            self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def shoot(self, path: Path) -> None:
        """A screenshot, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its own group: whatever of it is left
            except ProcessLookupError:
                pass
            self._process.wait()
            os.close(self._out)
            os.close(self._in)

    def __enter__(self) -> Browser:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
