"""Headless Chromium, controlled through the DevTools protocol over a pair of pipes.

    with Browser(directory) as browser:
        browser.open("http://127.0.0.1:7780/")
        browser.wait("document.querySelector('table')")
        browser.press("Tab")

Records the URLs that the page requests in `requests`, and its exceptions and log entries in `faults`."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time

PROGRAM = shutil.which("chromium")
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
          "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
_KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    def __init__(self, directory, width=1240, height=1000):
        self.requests, self.faults = [], []
        self._last, self._unread = 0, b""
        (commands, self._in), (self._out, answers) = os.pipe(), os.pipe()
        # Chromium expects the pipes as descriptors 3 and 4. A separate process group, because it has children.
        command = ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", PROGRAM, *_FLAGS,
                   f"--window-size={width},{height}", f"--user-data-dir={directory}", "about:blank"]
        self._log = open(f"{directory}.log", "wb")
        self._process = subprocess.Popen(command, pass_fds=(commands, answers), stdin=subprocess.DEVNULL,
                                         stdout=self._log, stderr=self._log, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        self._log.close()

    # --- user input

    def open(self, url):
        self._call("Page.navigate", url=url)

    def press(self, key, times=1):
        code = _KEYS[key]
        for _ in range(times):
            more = {"text": "\r"} if key == "Enter" else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x, y):
        """Moves the pointer, in pixels of the viewport."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text):
        self._call("Input.insertText", text=text)

    def prefer(self, scheme):
        """Sets the preferred color scheme, `light` or `dark`."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width, height):
        """Sets the size of the viewport, which is smaller than the window."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def trust_any_certificate(self):
        self._call("Security.setIgnoreCertificateErrors", ignore=True)

    # --- page content

    def ask(self, expression):
        """Evaluates an expression in the page."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, expression, timeout_s=60):
        """Waits until the expression is truthy in the page, for example an element, and returns it. An exception
        means "not yet", because parts of a loading document are missing."""
        expression = f"(() => {{ try {{ const found = {expression}; return found instanceof Node || found; }} catch {{}} }})()"
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = self.ask(expression)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"not true within {timeout_s} s: {expression}\n{self.text()}\n{self.faults}")

    def text(self):
        return self.ask("document.body.innerText")

    def picture(self, path):
        reply = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(reply["data"]))

    # --- protocol: JSON messages, each followed by a zero byte

    def _call(self, method, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._keep(answer)

    def _message(self):
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._out], [], [], 60)
            more = os.read(self._out, 1 << 20) if ready else b""
            assert more, "Chromium: ended or did not answer"
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def _keep(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(parameters["exceptionDetails"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["source"] != "network":
            self.faults.append(parameters["entry"])
