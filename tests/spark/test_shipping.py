"""An application gets to members as any PySpark code does: from a notebook, in a zip, with arguments and secrets."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.cluster.shipping import send_application
from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.jvm import python_includes_of
from broadsheet.spark_bridge.session import recommended_conf
from broadsheet.spark_bridge.standalone import spark_home_of_pip
from tests.support.eventually import eventually_sync
from tests.support.flight_rounds import make_flight_journals
from tests.support.otlp_collector import collecting
from tests.support.spark import shard_specs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.standalone import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

CELL = """
import logging
import structlog
from broadsheet.examples.flights.app import FlightsApplication

class Mine(FlightsApplication):
    '''Counts flights, and says so.'''

    def new_store(self, shard):
        logging.getLogger("mine").info("opens a store of %s", shard.id)
        structlog.get_logger().info("mine.opens")
        return super().new_store(shard)

def create(arguments):
    assert arguments["token"], "a secret"
    print("made by", __name__)
    return Mine(arguments["database"])
"""
"""What somebody types into a notebook, or writes into a script that is run, or ships in a zip."""

SCRIPT = """
from pyspark.sql import SparkSession
from broadsheet.spark_bridge.cluster import ShardCluster
from tests.support.spark import make_journals, shard_specs
import beside
import shipped_by_submit

spark = SparkSession.builder.getOrCreate()

class Mine(shipped_by_submit.Mine):
    '''Of __main__, above a class of the zip.'''

def create(arguments):
    assert arguments["token"] == beside.TOKEN
    return Mine(arguments["database"])

with ShardCluster(spark, create, members=2, root="/test/submitted") as cluster:
    make_journals(cluster.services.broker_address, ["submitted/000"])
    cluster.apply(shard_specs("submitted", ["submitted/000"]))
    print("SERVED", *cluster.wait_for_primary(["submitted-000"]))
spark.stop()
"""

Cluster = Callable[..., Any]  # a context manager of a cluster that serves one shard


def _as_main(code: str) -> dict[str, Any]:
    """Run code as a notebook's kernel, or `python script.py`, does: no module that can be imported has its names."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), namespace)  # noqa: S102 - the cell above
    return namespace


@contextmanager
def _conf(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@contextmanager
def _serving(
    spark: SparkSession, services: Services, application: Any, directory: Path
) -> Iterator[tuple[ShardCluster, str]]:
    """A member that serves one shard, and the shard's id."""
    name = f"shipped-{uuid4().hex[:8]}"
    settings = {
        "spark.broadsheet.etcd.endpoints": ",".join(services.etcd.endpoints),
        "spark.broadsheet.broker": services.broker_address,
        "spark.broadsheet.app.database": f"sqlite:///{directory}/{{shard}}.db",
        "spark.broadsheet.secret.app.token": f"hunter2-{name}",
        "spark.broadsheet.secret.authKeys": base64.b64encode(
            f"keys-{name}, which have 32 bytes or more".encode()
        ).decode(),
    }
    with (
        _conf(spark, settings),
        ShardCluster(spark, application, members=1, root=f"/test/{name}") as cluster,
    ):
        make_flight_journals(services.broker_address, [name])
        cluster.apply(shard_specs(name, [name]))
        cluster.wait_for_primary([f"{name}-000"])
        yield cluster, f"{name}-000"


def _logs_of(standalone: StandaloneCluster) -> str:
    """What every executor has written so far."""
    paths = sorted(standalone.directory.glob("work-*/app-*/*/std*"))
    return "\n".join(path.read_text(errors="replace") for path in paths)


def test_application_of_a_notebook_serves_and_its_logs_name_member_and_shard(
    spark: SparkSession, services: Services, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    """A class and a factory of __main__ go by value. What the application says, by `structlog` or by `logging`, is in
    the log of its executor with the member's task and the shard that it was said for; what it prints is there, too.
    """
    create = _as_main(CELL)["create"]

    with _serving(spark, services, create, tmp_path) as (cluster, shard):
        (member,) = cluster.members()
        told = [
            f"event=mine.opens shard={shard} task={member.member_id.suffix}",
            f'event="opens a store of {shard}" logger=mine shard={shard}',
            "made by __main__",
        ]

        def is_told() -> bool:
            logs = _logs_of(standalone)
            for each in told:
                assert each in logs, f"no {each!r} in {logs[-4000:]}"
            return True

        eventually_sync(is_told)
        assert f"executorId={member.executor_id}&" in member.log_url


def test_secrets_are_neither_logged_nor_listed(
    spark: SparkSession, services: Services, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    """Keys and tokens come by Spark's conf. They are in no log of driver, executors or daemons, in no answer of a
    member, in no key of etcd, and Spark itself shows them redacted.
    """
    create = _as_main(CELL)["create"]

    with capture_logs() as logs, _serving(spark, services, create, tmp_path) as (cluster, shard):
        listing = str(cluster.client.list())
        kept = asyncio.run(_all_of(services))
        shown = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
        secrets = [value for name, value in _secrets(spark).items()]

    files = [path for path in standalone.directory.rglob("*") if path.suffix in (".log", "")]
    written = "\n".join(
        path.read_text(errors="replace") for path in files if path.is_file() and path.exists()
    )
    assert len(secrets) == 2
    assert shard in listing
    for secret in secrets:
        assert secret not in listing
        assert secret not in json.dumps(logs, default=str)
        assert secret not in written
        assert secret.encode() not in kept
        assert secret not in shown.values()
    assert "redacted" in shown["spark.broadsheet.secret.authKeys"]


def _secrets(spark: SparkSession) -> dict[str, str]:
    prefix = "spark.broadsheet.secret."
    return {name: value for name, value in spark.conf.getAll.items() if name.startswith(prefix)}


async def _all_of(services: Services) -> bytes:
    async with EtcdClient(services.etcd) as etcd:
        found = await etcd.get_range(b"/", prefix_range_end(b"/"))
        return b"\n".join(kv.key + kv.value for kv in found.kvs)


def test_application_in_a_zip_is_imported_where_it_runs(
    spark: SparkSession, services: Services, tmp_path: Path, sent_path: Path
) -> None:
    """`--py-files`, or `addPyFile` once the session runs: executors import what the zip has, by the factory's name."""
    module = f"shipped_{uuid4().hex[:8]}"
    archive = sent_path / f"{module}.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr(f"{module}.py", CELL)
    spark.sparkContext.addPyFile(str(archive))

    with _serving(spark, services, f"{module}:create", tmp_path) as (cluster, shard):
        assert [one.spec.id for one in cluster.client.list().shards] == [shard]


def test_application_beside_the_program_is_sent_as_it_is_now(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors import a package of the notebook's directory, and what it imports there. After an edit the next cluster
    has the new text, and so has the driver: it still imports from the directory.
    """
    package = f"beside_{uuid4().hex[:8]}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "app.py").write_text(f"from {package}_words import WORDS\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = list(sys.path)
    name = f"{package}.app"

    def sent(words: str) -> Any:
        (tmp_path / f"{package}_words.py").write_text(f"WORDS = {words!r}\n")
        send_application(spark.sparkContext, f"{name}:create")
        rows = spark.sparkContext.parallelize([name], 1)
        return rows.map(lambda one: importlib.import_module(one).WORDS).collect()

    with capture_logs() as logs:
        assert sent("before") == ["before"]
        assert sent("after") == ["after"]
        assert sent("after") == ["after"]

    told = [each for each in logs if each["event"] == "cluster.application_sent"]
    assert told[0]["modules"] == (package, f"{package}_words")
    assert [each["files"] for each in told] == [3, 3, 3]
    assert len({each["archive"] for each in told}) == 2
    # Executors get the archives in any order, so that two states of one application must not be among them.
    assert [each for each in python_includes_of(spark.sparkContext) if package in each] == [
        told[-1]["archive"]
    ]
    assert sys.path == path


def test_application_is_submitted_as_any_other(tmp_path: Path) -> None:
    """`spark-submit --py-files zip --conf … script`: the script's class extends one of the zip; arguments by conf.

    A module beside the script, which the script's functions use, is sent without being asked for.
    Traces are turned on by conf, too: the members export them to the collector that the executors' environment names.
    """
    archive, script = tmp_path / "shipped_by_submit.zip", tmp_path / "script.py"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr("shipped_by_submit.py", CELL)
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text('TOKEN = "hunter2"\n')
    conf = {
        **recommended_conf(),
        "spark.ui.enabled": "false",
        "spark.broadsheet.app.database": f"sqlite:///{tmp_path}/{{shard}}.db",
        "spark.broadsheet.secret.app.token": "hunter2",
        "spark.broadsheet.traces": "true",
    }
    with collecting() as collector:
        conf["spark.executorEnv.OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
        ran = _submitted(script, archive, conf)

    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "SERVED submitted-000" in ran.stdout
    assert ("broadsheet-member", "consumer.Shard/Apply") in {
        (service, span.name) for service, span in collector.spans()
    }


def _submitted(
    script: Path, archive: Path, conf: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [
            str(spark_home_of_pip() / "bin" / "spark-submit"),
            *("--master", "local[3,100000]", "--py-files", str(archive)),
            *(*options, str(script)),
        ],
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
