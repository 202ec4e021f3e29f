"""Servers that a program starts as its own, for trials and tests: etcd, a broker, a member."""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.consumer.embedded.broker import EmbeddedBroker, EmbeddedBrokerProcess
    from broadsheet.consumer.embedded.child_process import ChildProcess
    from broadsheet.consumer.embedded.etcd import EmbeddedEtcd, EmbeddedEtcdProcess
    from broadsheet.consumer.embedded.member import EmbeddedMemberProcess

__all__ = [
    "ChildProcess",
    "EmbeddedBroker",
    "EmbeddedBrokerProcess",
    "EmbeddedEtcd",
    "EmbeddedEtcdProcess",
    "EmbeddedMemberProcess",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ChildProcess": "broadsheet.consumer.embedded.child_process",
            "EmbeddedBroker": "broadsheet.consumer.embedded.broker",
            "EmbeddedBrokerProcess": "broadsheet.consumer.embedded.broker",
            "EmbeddedEtcd": "broadsheet.consumer.embedded.etcd",
            "EmbeddedEtcdProcess": "broadsheet.consumer.embedded.etcd",
            "EmbeddedMemberProcess": "broadsheet.consumer.embedded.member",
        },
    )
