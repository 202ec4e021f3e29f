"""Servers that a program starts as its own, for trials and tests: etcd, a broker, a member."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.embedded.broker import (
        EmbeddedBroker as EmbeddedBroker,
        EmbeddedBrokerProcess as EmbeddedBrokerProcess,
    )
    from broadsheet.embedded.child_process import ChildProcess as ChildProcess
    from broadsheet.embedded.etcd import (
        EmbeddedEtcd as EmbeddedEtcd,
        EmbeddedEtcdProcess as EmbeddedEtcdProcess,
    )
    from broadsheet.embedded.member import EmbeddedMemberProcess as EmbeddedMemberProcess

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
