"""Pages that are followed from an empty folder: every fenced block of such a page is a step of it.

<!-- run -->               the ```sh block below is run in the folder that the block before left, or the ```python block
<!-- start -->             the one line of the ```sh block below, a `shardctl dev`, is started and left running
<!-- shows -->             each line of the ```text block below is in the output of the block before
<!-- install -->           the ```sh block below installs what the test's environment has
New file **path**:         the block below is the file
In **path**:               the ```diff block below is the change of the file; any other block is a part of it
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.dev_cluster import running_dev
from tests.support.documents import Block, missing_line
from tests.support.quick_spark import with_defaults_of_spark
from tests.support.recipes import Step, changed

_FENCE = re.compile(r"^```", re.MULTILINE)
_STEP = re.compile(
    r"^(?:(New file|In) \*\*([\w./-]+)\*\*:\n|<!-- (run|start|shows|install) -->)\n```(\w+)\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_DEV_0 = re.compile(r"^dev-0 .*\(pid (\d+)\)", re.MULTILINE)
_SECONDS_MAX = 580


@dataclass(slots=True)
class Walk:
    """A reader of a page, in a folder."""

    folder: Path
    """Where they are; a `cd` moves them."""
    environment: Mapping[str, str]
    resources: ExitStack
    """Ends the cluster that the page starts."""
    output: str = ""
    """Of the last block that ran."""
    replaced: dict[str, str] = field(default_factory=dict)
    """What the page says of ports and process ids, and what it is here."""

    def follow(self, page: Path, *, headings: range | None = None) -> None:
        """Do what a page says; fail where something else happens.

        Args:
            page: The page.
            headings: The numbers of the parts (`## 3. …`) to follow; None: all.
        """
        text = page.read_text(encoding="utf-8")
        steps = list(_STEP.finditer(text))
        assert 2 * len(steps) == len(_FENCE.findall(text)), "a block of the page is no step"
        for found in steps:
            part = re.findall(r"^## (\d+)\.", text[: found.start()], re.MULTILINE)
            if headings is not None and (not part or int(part[-1]) not in headings):
                continue
            kind, path, marker, language, content = found.groups()
            self._take(kind or marker, path or "", language, content)

    def _take(self, kind: str, path: str, language: str, text: str) -> None:
        file = self.folder / path
        if kind == "New file":
            assert not file.exists(), f"{path} is there already"
            file.write_text(text, encoding="utf-8")
        elif kind == "In" and language == "diff":
            after = changed(file.read_text(encoding="utf-8"), Step(kind, path, text))
            file.write_text(after, encoding="utf-8")
        elif kind == "In":
            # The formatter indents and wraps a part of a file in its own way.
            whole, part = ("".join(each.split()) for each in (file.read_text("utf-8"), text))
            assert part in whole, f"{path} lacks\n{text}"
        elif kind == "start":
            self._start(text.strip())
        elif kind == "run":
            self.output = self._run(Block(kind, language, text, ()))
        elif kind == "shows":
            missing = missing_line(tuple(map(self._here, text.splitlines())), self.output)
            assert missing is None, f"{missing!r} is not in\n{self.output}"

    def _start(self, command: str) -> None:
        dev = self.resources.enter_context(running_dev(command, self.folder, links=()))
        self.environment = {**self.environment, **dev.cluster}
        found = _DEV_0.search(dev.output)
        assert found, dev.output
        members, broker = dev.cluster["CONSUMER_ADDRESS"], dev.cluster["BROKER_ADDRESS"]
        self.replaced = {
            "http://127.0.0.1:8080": members.partition(",")[0],
            "http://127.0.0.1:8081": broker,
            "4917": found[1],
        }
        self.output = dev.output

    def _here(self, text: str) -> str:
        for said, real in self.replaced.items():
            text = text.replace(said, real)
        return text

    def _run(self, block: Block) -> str:
        place = self.folder / ".place"
        if block.language == "python":
            (self.folder / "block.py").write_text(self._here(block.code), encoding="utf-8")
            script = "python block.py"
        else:
            script = self._here(block.script)
        ran = subprocess.run(
            ["bash", "-euc", f"{script}\npwd > '{place}'"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        assert ran.returncode == 0, f"{script}\n{ran.stdout[-6000:]}"
        self.folder = Path(place.read_text(encoding="utf-8").strip())
        return ran.stdout


def environment_of(python: Path) -> dict[str, str]:
    """Return the environment of a reader who activated that of an interpreter, and set nothing else."""
    ours = ("BROADSHEET_", "CONSUMER_", "BROKER_", "ETCD_", "AUTH_", "PYTEST_", "COV_", "SPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # The tests' settings of Spark name a module of theirs, which an environment of a user's has not.
    return with_defaults_of_spark(
        kept | {"PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}
    )
