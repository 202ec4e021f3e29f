"""Keys that the bridge keeps in etcd: beside an allocator's root, never under it, where every key has its meaning.

{root}.clusters/{cluster}/orders/{whom}     tells members of a cluster to leave: `member.orders` has whom
{root}.clusters/{cluster}/hosts/{task}      where a member's task runs: `member.host`
{root}.clusters/{cluster}/failure           why a member failed last
{root}.publications/{publication}           the acknowledgements of a published DataFrame
{root}.queries/{query}                      those of a streaming query's latest micro-batch
"""

from __future__ import annotations

from broadsheet.allocator.keys import check_root


def cluster_prefix(root: str, cluster: str) -> bytes:
    """Return what all keys of one cluster start with."""
    return f"{check_root(root)}.clusters/{cluster}/".encode()


def orders_prefix(root: str, cluster: str) -> bytes:
    """Return what the keys that tell a cluster's members to leave start with."""
    return cluster_prefix(root, cluster) + b"orders/"


def hosts_prefix(root: str, cluster: str) -> bytes:
    """Return what the keys that tell where a cluster's members run start with."""
    return cluster_prefix(root, cluster) + b"hosts/"


def failure_key(root: str, cluster: str) -> bytes:
    """Return the key that holds why one of a cluster's members failed last."""
    return cluster_prefix(root, cluster) + b"failure"


def publication_key(root: str, publication: str) -> bytes:
    """Return the key of a publication's acknowledgements."""
    return f"{check_root(root)}.publications/{publication}".encode()


def query_key(root: str, query: str) -> bytes:
    """Return the key of the acknowledgements of a streaming query's latest micro-batch."""
    return f"{check_root(root)}.queries/{query}".encode()
