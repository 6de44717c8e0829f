"""Chromium without a window, driven through a pipe: pages as a browser shows them."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
]


class Page:
    """One tab. errors: what the console or the network complained of, or a script raised.

    Speaks the DevTools protocol: JSON messages, each of which ends with a zero byte.
    """

    def __init__(self, to_browser: int, from_browser: int):
        self.to_browser, self.from_browser = to_browser, from_browser
        self.session: str | None = None
        self.count, self.rest, self.errors = 0, b"", []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.from_browser, 1 << 20)
            assert part, "Chromium has ended"
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        event = json.loads(message)
        name, params = event.get("method"), event.get("params")
        if name == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append([x.get("value") for x in params["args"]])
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"asked the network for {url}")
        return event

    def open(self, path: Path, width: int, height: int = 800) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.send("Page.navigate", url=path.resolve().as_uri())
        while self.read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def choose(self, control: str, value: str) -> None:
        """As a user of a select element does."""
        script = (
            f"(s => {{ s.value = {json.dumps(value)}; "
            f"s.dispatchEvent(new Event('change')); return s.value; }})"
            f"(document.getElementById({json.dumps(control)}))"
        )
        assert self.run(script) == value, (control, value)

    def hover(self, script: str, x: float = 0.5, y: float = 0.5) -> None:
        """Moves the mouse to a place within an element, by default its middle."""
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center', inline: 'center'}}); "
            f"const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }})"
            f"({script})"
        )
        place = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """Chromium with an empty page."""
    assert CHROMIUM
    (their_in, to_browser), (from_browser, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # It reads from descriptor 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        arguments = [CHROMIUM, *SWITCHES, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", command, *arguments],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        try:
            yield Page(to_browser, from_browser)
        finally:
            os.close(to_browser)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            os.close(from_browser)
            time.sleep(0.1)  # its children let go of the profile
