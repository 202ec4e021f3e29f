"""Sends the application's own files to executors, as `SparkContext.addPyFile` does with an archive of one's own."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from pyspark import SparkContext, SparkFiles

from broadsheet.spark_bridge.cluster.application_files import (
    NotSentError,
    application_files,
    modules_needed,
    program_directories,
)
from broadsheet.spark_bridge.jvm import python_includes_of, temporary_directory_of

_log = structlog.get_logger()
_PREFIX = "broadsheet-application-"
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The same for each file, so that equal files make equal archives."""


def send_application(context: SparkContext, application: object) -> None:
    """Send the modules beside the driver's program that the application needs; log what was sent.

    Modules that are installed, or that the program has sent by `--py-files` or `addPyFile`, are left alone.

    Args:
        context: Whose executors get them.
        application: `module:factory`, or the factory.
    """
    needed = modules_needed(application)
    own = program_directories(sys.modules.get("__main__"), path=sys.path, environ=os.environ)
    try:
        found = application_files(needed, own, sent=_sent(context))
    except (NotSentError, OSError) as error:
        _log.warning(
            "cluster.application_not_sent",
            modules=needed,
            cause=str(error),
            advice="install it on executors, or send it with --py-files, addPyFile or spark.archives",
        )
        return
    if not found.files:
        return
    archive = _archived(found.files)
    # The digest makes another name of each state of the files: Spark never sends a name twice.
    states = f"{_PREFIX}{found.modules[0]}-"
    name = f"{states}{hashlib.sha256(archive).hexdigest()[:16]}.zip"
    # Executors fetch it from there for as long as the session lives, and Spark removes it then.
    path = Path(temporary_directory_of(context), name)
    if path.name not in _included(context):
        # Executors get the archives as a set, in any order: an earlier state must not come before this one.
        included = _included(context)
        included[:] = [each for each in included if not each.startswith(states)]
        path.write_bytes(archive)
        _add(context, path)
    _log.info(
        "cluster.application_sent",
        modules=found.modules,
        files=len(found.files),
        bytes=len(archive),
        archive=path.name,
    )


def _archived(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _FIRST_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name].read_bytes())
    return buffer.getvalue()


def _add(context: SparkContext, path: Path) -> None:
    context.addPyFile(str(path))
    # Spark puts the archive before the program's own directory in notebooks, where a file that is edited and imported
    # again would come out of the archive as it was.
    with suppress(ValueError):
        sys.path.remove(str(Path(SparkFiles.getRootDirectory(), path.name)))


def _included(context: SparkContext) -> list[str]:
    return python_includes_of(context)


def _sent(context: SparkContext) -> list[str]:
    """Return what executors import from, by its copy on the driver, but for archives of ours."""
    root = SparkFiles.getRootDirectory()
    archives = (name for name in _included(context) if not name.startswith(_PREFIX))
    return [root, *(str(Path(root, name)) for name in archives)]
