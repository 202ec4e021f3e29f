"""Tests of one's own application: a cluster in the test's process, which fails where the test wants it to.

    import pytest
    from hello.app import Hello

    from broadsheet.testing import Step, assert_exactly_once

    pytestmark = pytest.mark.broadsheet(application=Hello)      # every test here may ask for `cluster`

    def test_messages_are_counted(cluster):
        cluster.publish("events", {"key": "a"}, {"key": "b"}, {"key": "a"})   # journal and shard are made
        cluster.read_through()                                  # all is read, committed, acknowledged
        assert cluster.state("a") == 2                          # state() is the whole state
        assert cluster.published("alerts") == []                # what readers of a journal see

    def test_a_killed_primary_loses_nothing(cluster):
        cluster.kill_primary(after=Step.COMMIT_SENT)            # or now: cluster.kill_primary()
        cluster.publish("events", {"key": "a"})
        cluster.read_through()
        assert cluster.state("a") == 1

    def test_every_kill_point():
        assert_exactly_once(Hello, {"events": [{"key": "a"}, {"key": "b"}, {"key": "a"}]})

pytest finds the fixture `cluster` by itself; it is `TestCluster`, which is also a context manager. The cluster has no
servers and runs on virtual time, in milliseconds; `@pytest.mark.broadsheet(real=True)` runs the same test on an
embedded etcd and broker. All methods are plain functions; `async def` tests call them, too.

The simulators and the conformance suites of stores and leases are in the packages below this one.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.testing.kit.cluster import TestCluster as TestCluster
    from broadsheet.testing.kit.errors import (
        ClusterFailedError as ClusterFailedError,
        InjectedFaultError as InjectedFaultError,
        NotExactlyOnceError as NotExactlyOnceError,
        ShardFailedError as ShardFailedError,
        StuckError as StuckError,
    )
    from broadsheet.testing.kit.exactly_once import assert_exactly_once as assert_exactly_once
    from broadsheet.testing.kit.steps import Step as Step, StepTaken as StepTaken

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
