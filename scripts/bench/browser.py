"""Headless Chromium over its DevTools pipe: open a file, read its console, measure, take pictures."""

import base64
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One tab. `problems`: uncaught exceptions, and what the console or the browser called an error or a warning."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._last = 0
        self.problems: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, self._session, **parameters)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, file: Path, ready: str, limit_sec: float = 60.0) -> float:
        """Seconds from the request until the expression `ready` is true. Raises TimeoutError."""
        started = time.monotonic()
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while not self.value(ready):
            if time.monotonic() - started > limit_sec:
                raise TimeoutError(f"{file} was not ready after {limit_sec:g} s: {self.problems}")
            time.sleep(0.02)
        return time.monotonic() - started

    def value(self, expression: str) -> Any:
        """Of JavaScript; a promise is awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def picture(self, to: Path) -> None:
        to.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not (chunk := os.read(self._answers, 1 << 16)):
                raise RuntimeError("the browser went away")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(parameters["entry"]["text"])


@contextmanager
def browser(program: str = "chromium") -> Iterator[Page]:
    """A fresh browser with a profile of its own; gone when the block ends."""
    command_out, command_in = os.pipe()
    answer_out, answer_in = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{command_out} 4>&{answer_in}; exec "$@"', "-", program, *FLAGS,
             f"--user-data-dir={profile}"],
            pass_fds=(command_out, answer_in), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_out)
        os.close(answer_in)
        try:
            yield Page(command_in, answer_out)
        finally:
            process.terminate()
            process.wait(30)
            os.close(command_in)
            os.close(answer_out)
