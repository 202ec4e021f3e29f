"""The allocator's public names: it places items on members, and verifies a placement.

The simulator's public names are in `broadsheet.testing.allocator`. Everything else is internal and may change in any
release.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.allocator.config import AllocationConfig as AllocationConfig
    from broadsheet.allocator.errors import AllocatorError as AllocatorError
    from broadsheet.allocator.etcd.client import EtcdClient as EtcdClient
    from broadsheet.allocator.etcd.config import EtcdConfig as EtcdConfig
    from broadsheet.allocator.key_space import KeySpace as KeySpace
    from broadsheet.allocator.keys import Keys as Keys
    from broadsheet.allocator.model import ItemId as ItemId, MemberId as MemberId
    from broadsheet.allocator.placement.certificate import (
        Certificate as Certificate,
        certify as certify,
        verify as verify,
    )
    from broadsheet.allocator.placement.problem import (
        Problem as Problem,
        ProblemItem as ProblemItem,
        ProblemMember as ProblemMember,
    )
    from broadsheet.allocator.placement.solver import FlowSolver as FlowSolver
    from broadsheet.allocator.policy import (
        AllocationPolicy as AllocationPolicy,
        Balance as Balance,
        LoadPolicy as LoadPolicy,
        MoveLogPolicy as MoveLogPolicy,
        Objective as Objective,
        PrimaryPolicy as PrimaryPolicy,
        TransitionPolicy as TransitionPolicy,
    )
    from broadsheet.allocator.session import Session as Session, SessionConfig as SessionConfig
    from broadsheet.runtime.task_group import TaskGroup as TaskGroup

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
