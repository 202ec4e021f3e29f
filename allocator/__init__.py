"""The allocator's door: what places items on members, and the parts that judge a placement.

The simulator's door is `allocator.simulation`. What neither names is internal, and may change in any release.
"""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from allocator.config import AllocationConfig
    from allocator.errors import AllocatorError, ExtraMissingError, ValidationError
    from allocator.etcd.client import EtcdClient
    from allocator.etcd.config import EtcdConfig
    from allocator.key_space import KeySpace
    from allocator.keys import Keys
    from allocator.model import ItemId, MemberId
    from allocator.placement.certificate import Certificate, certify, verify
    from allocator.placement.choose import best_solver
    from allocator.placement.problem import Problem, ProblemItem, ProblemMember
    from allocator.policy import (
        AllocationPolicy,
        Balance,
        LedgerPolicy,
        LoadPolicy,
        Objective,
        PrimaryPolicy,
        TransitionPolicy,
    )
    from allocator.runtime.task_group import TaskGroup
    from allocator.session import Session, SessionConfig

__all__ = [
    "AllocationConfig",
    "AllocationPolicy",
    "AllocatorError",
    "Balance",
    "Certificate",
    "EtcdClient",
    "EtcdConfig",
    "ExtraMissingError",
    "ItemId",
    "KeySpace",
    "Keys",
    "LedgerPolicy",
    "LoadPolicy",
    "MemberId",
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
    "best_solver",
    "certify",
    "verify",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AllocationConfig": "allocator.config",
            "AllocationPolicy": "allocator.policy",
            "AllocatorError": "allocator.errors",
            "Balance": "allocator.policy",
            "Certificate": "allocator.placement.certificate",
            "EtcdClient": "allocator.etcd.client",
            "EtcdConfig": "allocator.etcd.config",
            "ExtraMissingError": "allocator.errors",
            "ItemId": "allocator.model",
            "KeySpace": "allocator.key_space",
            "Keys": "allocator.keys",
            "LedgerPolicy": "allocator.policy",
            "LoadPolicy": "allocator.policy",
            "MemberId": "allocator.model",
            "Objective": "allocator.policy",
            "PrimaryPolicy": "allocator.policy",
            "Problem": "allocator.placement.problem",
            "ProblemItem": "allocator.placement.problem",
            "ProblemMember": "allocator.placement.problem",
            "Session": "allocator.session",
            "SessionConfig": "allocator.session",
            "TaskGroup": "allocator.runtime.task_group",
            "TransitionPolicy": "allocator.policy",
            "ValidationError": "allocator.errors",
            "best_solver": "allocator.placement.choose",
            "certify": "allocator.placement.certificate",
            "verify": "allocator.placement.certificate",
        },
    )
