"""A headless Chromium, driven by its own protocol: no driver, no library."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

PATIENCE_SECONDS: Final = 30.0
_FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-extensions", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip


class Tab:
    """One page, and whatever it complained of."""

    def __init__(self, wire: aiohttp.ClientWebSocketResponse) -> None:
        self._wire, self._sent = wire, 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: Exceptions, errors on the console, and what the policy blocked.
        self.complaints: list[str] = []
        #: Addresses that it asked for.
        self.asked: list[str] = []

    async def read(self) -> None:
        """Take what the browser says, until it ends."""
        async for message in self._wire:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
                continue
            params = said["params"]
            match said["method"]:
                case "Runtime.exceptionThrown":
                    self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
                case "Log.entryAdded":
                    entry = params["entry"]
                    if entry["level"] == "error":
                        self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
                case "Runtime.consoleAPICalled" if params["type"] == "error":
                    self.complaints.append(json.dumps(params["args"])[:500])
                case "Network.requestWillBeSent":
                    self.asked.append(params["request"]["url"])
                case _:
                    pass

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return what the browser answers."""
        self._sent += 1
        waiting = self._answers[self._sent] = asyncio.get_running_loop().create_future()
        await self._wire.send_json({"id": self._sent, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await waiting
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return an expression's value as soon as it is something."""
        found = None
        for _ in range(round(PATIENCE_SECONDS / 0.05)):
            if found := await self.value(expression):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"it never came: {expression}; {self.complaints}")

    async def key(self, key: str, code: int, text: str = "") -> None:
        """Press a key and let it go."""
        at = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **at)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **at)

    async def look(self, width: int, *, dark: bool, height: int = 1_000) -> None:
        """Be a window of this width, in a light or a dark room."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write what is seen, of the whole page or of the window."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        _keep(file, base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser(home: Path, address: str = "about:blank") -> AsyncIterator[Tab]:
    """Start Chromium with a profile of its own; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        "chromium",
        *_FLAGS,
        f"--user-data-dir={home}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        start_new_session=True,
    )
    try:
        port = await _port(home / "DevToolsActivePort")
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (found,) = [each for each in await answer.json() if each["type"] == "page"]
            async with http.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0) as wire:
                tab = Tab(wire)
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(tab.read())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await tab.call(f"{domain}.enable")
                    await tab.call("Page.navigate", url=address)
                    try:
                        yield tab
                    finally:
                        reading.cancel()
    finally:
        process.kill()
        await process.wait()


async def _port(file: Path) -> int:
    for _ in range(round(PATIENCE_SECONDS / 0.05)):
        if (text := _text(file)).count("\n"):
            return int(text.split()[0])
        await asyncio.sleep(0.05)
    raise AssertionError("Chromium did not start")


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _keep(file: Path, picture: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(picture)
