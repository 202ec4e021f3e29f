"""The embedded broker: Gazette's journal protocol on one machine's disk."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.broker.config import BrokerConfig as BrokerConfig, Durability as Durability
    from broadsheet.broker.server import Broker as Broker

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
