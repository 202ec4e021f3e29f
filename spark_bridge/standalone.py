"""A real standalone Spark on this machine: a master and N workers, each in its own process.

It runs the pip distribution, which lacks `start-master.sh` but has the classes. It is for demonstrations and tests: it
listens on loopback addresses only, on ports chosen by the kernel, keeps everything in one temporary directory, and dies
with its parent.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from broadsheet.embedded.child_process import ChildProcess
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.spark_bridge.errors import ClusterStartError
from broadsheet.spark_bridge.java import Java, find_java

_HOST = "127.0.0.1"
_MASTER_CLASS = "org.apache.spark.deploy.master.Master"
_WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)[\s\S]*New state: ALIVE")
_WORKER_READY = re.compile(r"Successfully registered with master")
_DAEMON_MEMORY = "256m"
"""Heap of the master and of each worker, which is small because they run no tasks."""


_LOG_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 2_000
_STOP_TIMEOUT_SECONDS = 5.0


class Daemon:
    """A Spark daemon as a child process, with its log in a file; it dies with this process."""

    def __init__(
        self, name: str, command: Sequence[str], *, directory: Path, environ: Mapping[str, str]
    ) -> None:
        """Start `command`.

        Args:
            name: Its name in errors, and that of its log file.
            command: Absolute path of a program, and its arguments.
            directory: Takes the log file; the working directory.
            environ: Its whole environment.
        """
        self._name = name
        self._log_path = directory / f"{name}.log"
        self._child = ChildProcess(
            command, directory=directory, log_file=self._log_path, environment=environ
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def wait_for_log(self, pattern: re.Pattern[str], *, timeout_seconds: float) -> re.Match[str]:
        """Wait until its log matches.

        Raises:
            ClusterStartError: it ended, or the time passed, before that; the message has the end of its log.
        """
        waiting = Retrying(
            retry=retry_if_result(lambda found: found is None),
            wait=wait_fixed(_LOG_POLL_SECONDS),
            stop=stop_after_delay(timeout_seconds),
        )
        try:
            match = waiting(self._search_log, pattern)
        except RetryError:
            raise ClusterStartError(
                f"Spark's {self._name} was not ready within {timeout_seconds:g} s; "
                f"its log ends: {self._log_end()}"
            ) from None
        assert match is not None, "retried until found"
        return match

    def kill(self) -> None:
        """Send SIGKILL and reap it. Idempotent."""
        self._child.kill()

    def stop(self) -> None:
        """Ask it to end, and kill it if it lingers. Idempotent."""
        self._child.terminate(timeout_seconds=_STOP_TIMEOUT_SECONDS)

    def _search_log(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        # Polled before reading, so that the last lines of a process that ended are seen.
        exit_code = self._child.exit_code
        match = pattern.search(self._log_path.read_text(errors="replace"))
        if match is None and exit_code is not None:
            raise ClusterStartError(
                f"Spark's {self._name} ended with {exit_code}; its log ends: {self._log_end()}"
            )
        return match

    def _log_end(self) -> str:
        return self._log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()


class StandaloneCluster:
    """A standalone Spark cluster at `master_url`; a context manager around its processes."""

    def __init__(
        self,
        *,
        workers: int = 2,
        cores_per_worker: int = 4,
        worker_memory_mib: int = 1024,
        worker_hosts: Sequence[str] = (),
        start_timeout_seconds: float = 60.0,
    ) -> None:
        """Describe the cluster; `start` starts it.

        Args:
            workers: Number of worker processes.
            cores_per_worker: Task slots of each, whatever the machine has: members need one each for as long as
                they live, and DataFrame tasks run in the rest.
            worker_memory_mib: Memory of all executors of one worker together, MiB.
            worker_hosts: A loopback address for each worker; all have the same if not given. Spark takes workers of
                one address for one machine, on which it starts no speculative copy of a task that runs there.
            start_timeout_seconds: Deadline for the master, and then for the workers.
        """
        self._worker_count = workers
        self._cores_per_worker = cores_per_worker
        self._worker_memory_mib = worker_memory_mib
        self._worker_hosts = tuple(worker_hosts) or (_HOST,) * workers
        self._start_timeout_seconds = start_timeout_seconds
        self._directory: ProcessDirectory | None = None
        self._master: Daemon | None = None
        self._workers: list[Daemon] = []
        self._master_url = ""

    @property
    def master_url(self) -> str:
        """URL of the master, `spark://HOST:PORT`."""
        assert self._master_url, "start the cluster first"
        return self._master_url

    @property
    def total_cores(self) -> int:
        """Task slots of all workers."""
        return self._worker_count * self._cores_per_worker

    @property
    def session_conf(self) -> dict[str, str]:
        """Settings of a session that uses the whole cluster, with one executor a worker."""
        return {
            # Known in advance, so that a job can wait until every slot is there.
            "spark.cores.max": str(self.total_cores),
            "spark.executor.memory": f"{self._worker_memory_mib}m",
            "spark.ui.enabled": "false",
        }

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, by their index."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def directory(self) -> Path:
        """Directory of the daemons' logs, and of `work-I/` with those of worker I's executors."""
        assert self._directory is not None, "start the cluster first"
        return self._directory.path

    def start(self) -> None:
        """Start the processes and wait until every worker is registered.

        Raises:
            JavaNotFoundError: there is no Java.
            ClusterStartError: a process ended or was not ready in time.
        """
        java = find_java()
        self._directory = ProcessDirectory("broadsheet-spark-")
        try:
            self._master = self._start_daemon(
                java,
                "master",
                [_MASTER_CLASS, "--host", _HOST, "--port", "0", "--webui-port", "0"],
                host=_HOST,
            )
            ready = self._master.wait_for_log(
                _MASTER_READY, timeout_seconds=self._start_timeout_seconds
            )
            self._master_url = ready[1]
            for index in range(self._worker_count):
                self._workers.append(self._start_worker(java, index))
            for worker in self._workers:
                worker.wait_for_log(_WORKER_READY, timeout_seconds=self._start_timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def kill_worker(self, index: int) -> None:
        """Kill a worker with SIGKILL; its executors notice it and exit, and are not replaced."""
        self._workers[index].kill()

    def stop(self) -> None:
        """Stop every process and remove the directory. Idempotent, and safe before `start`."""
        for daemon in (*self._workers, *([self._master] if self._master else [])):
            daemon.stop()
        self._workers.clear()
        self._master = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _start_worker(self, java: Java, index: int) -> Daemon:
        work_dir = self.directory / f"work-{index}"
        host = self._worker_hosts[index]
        arguments = ["--host", host, "--port", "0", "--webui-port", "0"]
        arguments += ["--cores", str(self._cores_per_worker)]
        arguments += ["--memory", f"{self._worker_memory_mib}M", "--work-dir", str(work_dir)]
        return self._start_daemon(
            java, f"worker-{index}", [_WORKER_CLASS, *arguments, self.master_url], host=host
        )

    def _start_daemon(self, java: Java, name: str, arguments: list[str], *, host: str) -> Daemon:
        spark_home = spark_home_of_pip()
        given = os.environ.get("JAVA_TOOL_OPTIONS", "")
        environ = {
            **os.environ,
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.directory),
            # JVMs do not know TMPDIR, and a killed one leaves the libraries that it unpacked. Executors inherit this.
            "JAVA_TOOL_OPTIONS": f"{given} -Djava.io.tmpdir={self.directory}".strip(),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            # Otherwise the master claims the fixed port 6066 for submissions, of which there are none.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            # Makes SIGPWR announce the end of a worker's machine instead of ending the worker.
            "SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true",
            "PYSPARK_PYTHON": sys.executable,
        }
        return Daemon(
            name,
            [str(spark_home / "bin" / "spark-class"), *arguments],
            directory=self.directory,
            environ=environ,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def spark_home_of_pip() -> Path:
    """Return the directory of the installed PySpark, which holds Spark itself."""
    import pyspark

    return Path(pyspark.__file__).parent
