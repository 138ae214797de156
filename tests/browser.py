"""A real browser for the pages: Chromium, told what to do over its DevTools protocol, as a user with mouse, keys and
a screen of any width would."""

import base64
import json
import os
import select
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: no chromium on PATH")

SCREENS = [(1280, "light"), (390, "dark")]
"""On which a page is tried: a width, and the colours that its user prefers."""
OPTIONS = """--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars
--disable-component-update --disable-sync --use-fake-ui-for-media-stream --use-fake-device-for-media-stream
--remote-debugging-pipe about:blank"""
CUT = """
[...document.querySelectorAll("body *")].filter(element => {
  const isDrawn = element.matches("svg text");
  if (!isDrawn && ![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) return false;
  if (element.closest("script, style, noscript, option") || !element.checkVisibility()) return false;
  const box = element.getBoundingClientRect(), outer = element.closest("svg.main-svg")?.getBoundingClientRect();
  if (box.width === 0) return false;
  if (element.closest(".scroll[data-more]")) return false;
  const left = Math.max(0, outer?.left ?? 0), right = Math.min(WIDTH, outer?.right ?? WIDTH);
  const over = isDrawn ? 0 : element.scrollWidth - element.clientWidth;
  const hides = getComputedStyle(element).overflowX !== "visible" && over > 1;
  return box.left < left - 1 || Math.max(box.right, box.left + over + box.width) > right + 1 || hides;
}).map(element => element.textContent.trim().slice(0, 80))
"""
"""Texts that are cut, found in the page."""
AXE = """
axe.run(document, {resultTypes: ["violations"], preload: false}).then(({violations}) => violations
  .filter(found => ["serious", "critical"].includes(found.impact))
  .flatMap(({id, nodes}) => nodes.map(({target, failureSummary}) =>
    [id, target.join(" "), ...failureSummary.split("\\n").slice(1).map(line => line.trim())].join(": "))))
"""
"""What axe-core finds, in the page."""
CONTROLS = """
document.body.tabIndex = -1;
document.body.focus();
document.body.removeAttribute("tabindex");
controls = [...document.querySelectorAll("a[href], button, input, textarea, summary, [tabindex='0']")]
  .filter(control => control.type !== "hidden" && control.checkVisibility({visibilityProperty: true}));
controls.length
"""
"""What can be worked, in the order of the page, from whose beginning Tab goes on."""
FOCUS = """
(expected => {
  const focused = document.activeElement, say = element => element && element !== document.body ?
    `${element.localName} "${element.ariaLabel ?? element.textContent.trim().slice(0, 60)}"` : "nothing";
  if (!expected && [document.body, controls[0]].includes(focused)) return [];  // it has left, or begins anew
  if (focused !== expected) return [`${say(expected)}: the focus is on ${say(focused)}`];
  const box = focused.getBoundingClientRect();
  const isOnScreen = box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight;
  const isMarked = getComputedStyle(focused).outlineStyle !== "none";
  return isOnScreen && isMarked ? [] : [`${say(expected)}: its focus cannot be seen`];
})(controls[INDEX])
"""
"""What is wrong with the focus, if it should be on that control; after the last one, on none."""
PATIENCE = 60
"""Seconds, until what does not come is an error."""
KEYS = {
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "ArrowDown": {"code": "ArrowDown", "windowsVirtualKeyCode": 40},
}


class Browser:
    """One window.

    Attributes:
        complaints: what the console says of the page that is open: errors, and requests that were refused.
        received: bytes that came over the network for it, by address.

    Args:
        profile: a folder for its files.
    """

    def __init__(self, profile: Path) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()  # it reads from number 3, and writes to number 4
        command = ["chromium", *OPTIONS.split(), f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._commands, self._messages, self._read = os.fdopen(ours_out, "wb", buffering=0), ours_in, bytearray()
        self._number, self._session, self._width = 0, "", 0
        self._events: list[str] = []
        self.complaints: list[str] = []
        self.received: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.close()  # ends it
        self._process.wait(30)
        os.close(self._messages)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            pass
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        """The next message; an event is noted."""
        while (end := self._read.find(b"\0")) < 0:
            if not select.select([self._messages], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser says nothing")
            if not (content := os.read(self._messages, 1 << 16)):
                raise RuntimeError("the browser has ended")
            self._read += content
        message: dict[str, Any] = json.loads(self._read[:end])
        del self._read[: end + 1]
        event, said = message.get("method", ""), message.get("params", {})
        self._events.append(event)
        if event == "Network.requestWillBeSent":
            self._addresses[said["requestId"]] = said["request"]["url"]
        elif event == "Network.loadingFinished":
            address = self._addresses.get(said["requestId"], "data:")
            if not address.startswith("data:"):  # is no network
                self.received[address] = self.received.get(address, 0) + int(said["encodedDataLength"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(said["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(said["entry"]["text"])
        return message

    def open(self, address: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Opens a page.

        Args:
            address: of it.
            width: of the screen, in CSS pixels; below 640 it is a phone's, with a finger in place of a mouse.
            height: of the screen.
            scheme: of colours that the user prefers: ``light`` or ``dark``.
        """
        self._width, is_phone = width, width < 640
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=is_phone)
        prefers = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": prefers[name]} for name in prefers])
        self.complaints, self.received = [], {}
        self._events.clear()
        self.call("Page.navigate", url=address)
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """Waits for the page that is coming, and until it has drawn."""
        while "Page.loadEventFired" not in self._events:
            self._next()
        self._events.clear()
        self.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def ask(self, expression: str) -> Any:
        """The value of an expression, or of what it promises, in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Presses the mouse on the middle of the first element that fits."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{box}.scrollIntoView({{block: 'center'}})")
        x, y = self.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box}.getBoundingClientRect())")
        self._events.clear()
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Writes where the cursor is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, with_shift: bool = False) -> None:
        """Presses a key of ``KEYS``."""
        self._events.clear()
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * with_shift, **KEYS[key])

    def focus(self, selector: str) -> None:
        """Puts the focus on the first element that fits, where ``tab_through`` has shown that Tab leads there."""
        self.ask(f"document.querySelector({json.dumps(selector)}).focus()")

    def barriers(self) -> list[str]:
        """What keeps people from reading or working the page as it is: the rules of axe-core that it breaks seriously
        or critically, each with the element and what is wrong with it."""
        self.ask((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8") + "; 0")
        return [str(found) for found in self.ask(AXE)]

    def tab_through(self) -> list[str]:
        """Presses Tab from the beginning of the page to its end.

        Returns:
            which control was not reached in its turn, or did not show that it was; empty where all were and did.
        """
        found: list[str] = []
        for index in range(self.ask(CONTROLS) + 1):
            self.press("Tab")
            found += self.ask(FOCUS.replace("INDEX", str(index)))
            if "the focus is on" in "".join(found):  # nothing comes in its turn any more
                break
        return found

    def cut_texts(self) -> list[str]:
        """Texts of which a part is outside of what can be seen: beyond the screen, or beyond the drawing that they are
        in; what can be scrolled to, in a box of its own that says so, can be seen."""
        return [str(text) for text in self.ask(CUT.replace("WIDTH", str(self._width)))]

    def photograph(self, file: Path) -> None:
        """Writes a picture of the whole page, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    @property
    def dom(self) -> str:
        """What the browser has made of the page."""
        return str(self.ask("document.documentElement.outerHTML"))
