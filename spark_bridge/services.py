"""The etcd and the broker that a cluster uses: the user's, or embedded ones on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from allocator.etcd.config import EtcdConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """How to reach both."""

    etcd: EtcdConfig
    broker_address: str


@contextmanager
def find_or_start(
    etcd: EtcdConfig | Sequence[str] | None, broker_address: str | None, *, data_dir: Path
) -> Iterator[Services]:
    """Give the services named, and start what is not named.

    What is started listens on 127.0.0.1, so it serves only executors of this machine.

    Args:
        etcd: Endpoints of your cluster, or all that is needed to reach it; None starts one.
        broker_address: `http://host:port` of your brokers; None starts one.
        data_dir: Where started ones keep their data; it survives them.
    """
    from consumer.embedded.broker import EmbeddedBrokerProcess
    from consumer.embedded.etcd import EmbeddedEtcdProcess

    with ExitStack() as started:
        if etcd is None:
            server = started.enter_context(EmbeddedEtcdProcess(data_dir / "etcd", listen="tcp"))
            etcd = (server.endpoint,)
        if broker_address is None:
            broker = started.enter_context(EmbeddedBrokerProcess(data_dir / "broker"))
            broker_address = broker.address
        config = etcd if isinstance(etcd, EtcdConfig) else EtcdConfig(endpoints=tuple(etcd))
        yield Services(etcd=config, broker_address=broker_address)
