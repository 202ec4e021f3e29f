"""Servers that a program starts for itself, to try things and in tests: etcd, a broker, a member, any other process."""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.embedded.broker import EmbeddedBroker, EmbeddedBrokerProcess
    from consumer.embedded.child_process import ChildProcess
    from consumer.embedded.etcd import EmbeddedEtcd, EmbeddedEtcdProcess
    from consumer.embedded.member import EmbeddedMemberProcess

__all__ = [
    "ChildProcess",
    "EmbeddedBroker",
    "EmbeddedBrokerProcess",
    "EmbeddedEtcd",
    "EmbeddedEtcdProcess",
    "EmbeddedMemberProcess",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ChildProcess": "consumer.embedded.child_process",
            "EmbeddedBroker": "consumer.embedded.broker",
            "EmbeddedBrokerProcess": "consumer.embedded.broker",
            "EmbeddedEtcd": "consumer.embedded.etcd",
            "EmbeddedEtcdProcess": "consumer.embedded.etcd",
            "EmbeddedMemberProcess": "consumer.embedded.member",
        },
    )
