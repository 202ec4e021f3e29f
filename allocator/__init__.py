"""The allocator's public names: it places items on members, and verifies a placement.

The simulator's public names are in `broadsheet.allocator.simulation`. Everything else is internal and may change in any
release.
"""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.allocator.config import AllocationConfig
    from broadsheet.allocator.errors import AllocatorError, ExtraMissingError, ValidationError
    from broadsheet.allocator.etcd.client import EtcdClient
    from broadsheet.allocator.etcd.config import EtcdConfig
    from broadsheet.allocator.key_space import KeySpace
    from broadsheet.allocator.keys import Keys
    from broadsheet.allocator.model import ItemId, MemberId
    from broadsheet.allocator.placement.certificate import Certificate, certify, verify
    from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
    from broadsheet.allocator.placement.solver import FlowSolver
    from broadsheet.allocator.policy import (
        AllocationPolicy,
        Balance,
        LoadPolicy,
        MoveLogPolicy,
        Objective,
        PrimaryPolicy,
        TransitionPolicy,
    )
    from broadsheet.allocator.runtime.task_group import TaskGroup
    from broadsheet.allocator.session import Session, SessionConfig

__all__ = [
    "AllocationConfig",
    "AllocationPolicy",
    "AllocatorError",
    "Balance",
    "Certificate",
    "EtcdClient",
    "EtcdConfig",
    "ExtraMissingError",
    "FlowSolver",
    "ItemId",
    "KeySpace",
    "Keys",
    "LoadPolicy",
    "MemberId",
    "MoveLogPolicy",
    "Objective",
    "PrimaryPolicy",
    "Problem",
    "ProblemItem",
    "ProblemMember",
    "Session",
    "SessionConfig",
    "TaskGroup",
    "TransitionPolicy",
    "ValidationError",
    "certify",
    "verify",
]

if not TYPE_CHECKING:  # `__getattr__` would make any name valid to a type checker.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AllocationConfig": "broadsheet.allocator.config",
            "AllocationPolicy": "broadsheet.allocator.policy",
            "AllocatorError": "broadsheet.allocator.errors",
            "Balance": "broadsheet.allocator.policy",
            "Certificate": "broadsheet.allocator.placement.certificate",
            "EtcdClient": "broadsheet.allocator.etcd.client",
            "EtcdConfig": "broadsheet.allocator.etcd.config",
            "ExtraMissingError": "broadsheet.allocator.errors",
            "FlowSolver": "broadsheet.allocator.placement.solver",
            "ItemId": "broadsheet.allocator.model",
            "KeySpace": "broadsheet.allocator.key_space",
            "Keys": "broadsheet.allocator.keys",
            "MoveLogPolicy": "broadsheet.allocator.policy",
            "LoadPolicy": "broadsheet.allocator.policy",
            "MemberId": "broadsheet.allocator.model",
            "Objective": "broadsheet.allocator.policy",
            "PrimaryPolicy": "broadsheet.allocator.policy",
            "Problem": "broadsheet.allocator.placement.problem",
            "ProblemItem": "broadsheet.allocator.placement.problem",
            "ProblemMember": "broadsheet.allocator.placement.problem",
            "Session": "broadsheet.allocator.session",
            "SessionConfig": "broadsheet.allocator.session",
            "TaskGroup": "broadsheet.allocator.runtime.task_group",
            "TransitionPolicy": "broadsheet.allocator.policy",
            "ValidationError": "broadsheet.allocator.errors",
            "certify": "broadsheet.allocator.placement.certificate",
            "verify": "broadsheet.allocator.placement.certificate",
        },
    )
