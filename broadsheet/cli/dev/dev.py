"""`shardctl dev`: a whole cluster on this machine, in seconds and without a JVM."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import click

from broadsheet.cli.application_name import load_application
from broadsheet.cli.command import plain_command
from broadsheet.cli.dev.cluster import Declared, DevCluster, require_free
from broadsheet.cli.journals.space import read_journal_changes
from broadsheet.cli.numbers import PORT
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.project import FILE, TABLE, Project, read_project
from broadsheet.cli.shards.space import read_shard_changes
from broadsheet.cli.specs.changes import ANY_REVISION
from broadsheet.cli.text_files import read_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.log_output import guard_standard_streams
from broadsheet.runtime.logs import log_to_stderr
from broadsheet.runtime.open_files import raise_open_files_limit
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.security.tls_options import TLS_VARIABLES
from broadsheet.serving.tracing import TRACES_VARIABLE, traces_option

MEMBERS_DEFAULT = 2
STATE_DIRECTORY_VARIABLE = "BROADSHEET_STATE_DIR"
"""Tells members where local state may be: beside the journals, so that neither outlives the other."""
_ETCD_VARIABLES = ("ETCD_USER", "ETCD_PASSWORD", "ETCD_PASSWORD_FILE")
"""Of members: credentials for another etcd."""
_SPECS: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


@command_options
class _DevOptions:
    app: str | None = argument(required=False)
    journals: Path | None = option("Journal specs to apply first.", type=_SPECS)
    specs: Path | None = option("Shard specs to apply once members serve.", type=_SPECS)
    members: int = option("How many.", type=click.IntRange(1, 32), default=MEMBERS_DEFAULT)
    port: int = option(
        "Of the first member; the second takes the one after the next, if it is free, the others any. 0: any.",
        env="CONSUMER_PORT",
        type=PORT,
        default=8080,
    )
    broker_port: int = option("Of the broker. 0: any.", env="BROKER_PORT", type=PORT, default=8081)
    data_dir: Path | None = option(
        "Keep journals and etcd's data here; otherwise they are removed at the end.",
        type=click.Path(path_type=Path, file_okay=False),
    )
    file_root: Path | None = option(
        "Root of file:// stores: the broker publishes sealed fragments of journals with such a store below it.",
        env="BROKER_FILE_ROOT",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
    )
    auth_keys_file: Path | None = option(
        "File with the base64 keys of members and broker; without it, they serve everyone here.",
        env="AUTH_KEYS_FILE",
        type=_SPECS,
    )
    traces: Annotated[bool, traces_option]


@plain_command("dev", _DevOptions, short_help="Run a whole cluster on this machine until Ctrl-C.")
def dev(options: _DevOptions) -> None:
    """Run etcd, a broker and members of the application APP until Ctrl-C.

    Without APP, the application and the files of specs are those of the project in the current folder: see
    [tool.broadsheet] in its pyproject.toml, as `shardctl init` writes it.

    Kill a member (`kill -9`) to watch its shards move: it is started again at once, as are etcd and the broker.

    Members find the path of a directory for local state, which lives as long as the journals, in BROADSHEET_STATE_DIR.

    \b
    Examples:
      shardctl dev
      shardctl dev broadsheet.examples.counter.app:Counter
      shardctl dev my.module:make_app --data-dir ./dev \\
          --journals journals.yaml --specs shards.yaml
    """
    guard_standard_streams()
    raise_open_files_limit()  # The processes that it starts inherit it.
    # The processes that it starts log for themselves.
    log_to_stderr("error", foreign_level=logging.WARNING)
    with ExitStack() as stack:
        # Mistakes are reported before anything starts.
        app, journals, specs = options.app, options.journals, options.specs
        if app is None:
            project = _project_here()
            app = project.application
            journals, specs = journals or project.journals, specs or project.specs
        load_application(app)
        declared = _read(journals, specs)
        require_free(options.port, "--port")
        require_free(options.broker_port, "--broker-port")
        directory = (
            options.data_dir or stack.enter_context(ProcessDirectory("broadsheet-dev-")).path
        )
        directory.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_locked(directory))
        for name in (*TLS_VARIABLES, *_ETCD_VARIABLES):
            # The cluster is for this machine alone, and speaks clear text, whatever is set for other clusters.
            os.environ.pop(name, None)
        if options.traces:
            # The members and the broker export them, each for itself.
            os.environ[TRACES_VARIABLE] = "1"
        os.environ.setdefault(STATE_DIRECTORY_VARIABLE, str(directory.absolute() / "state"))
        cluster = DevCluster(
            app,
            directory.absolute(),
            stack,
            broker_port=options.broker_port,
            file_root=_absolute(options.file_root),
            auth_keys_file=_absolute(options.auth_keys_file),
        )
        cluster.start_members(options.members, options.port)
        cluster.apply(declared)
        cluster.describe()
        cluster.watch()


def _project_here() -> Project:
    found = read_project(Path())
    if found is None:
        raise ValidationError(
            "APP",
            f"expected package.module:attribute, or a {FILE} here that has the table {TABLE}; shardctl init NAME makes "
            "a folder with one",
        )
    return found


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _read(journals: Path | None, specs: Path | None) -> Declared:
    declared = Declared(
        journals=() if journals is None else read_journal_changes(*read_text(journals)),
        shards=() if specs is None else read_shard_changes(*read_text(specs)),
        shards_source=str(specs),
    )
    # A file without revisions declares what shall be, also where data of an earlier run are kept.
    for journal in declared.journals:
        journal.expect_mod_revision = journal.expect_mod_revision or ANY_REVISION
    for shard in declared.shards:
        shard.expect_mod_revision = shard.expect_mod_revision or ANY_REVISION
    return declared


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep a directory to this process for the block.

    Raises:
        ValidationError: another one has it; the message names it.
    """
    # Opened without being cut: its content is the other's.
    with (directory / "dev.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            other = lock.read(20).strip() or "unknown"
            raise ValidationError(
                "--data-dir",
                f"another shardctl dev uses {directory} (process {other}); stop it, or choose another directory",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
