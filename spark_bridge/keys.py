"""Keys of the bridge in etcd: beside an allocator's root, never under it, because there every key has a meaning.

{root}.clusters/{cluster}/orders/{whom}     orders members of a cluster to leave; see `member.orders`
{root}.clusters/{cluster}/hosts/{task}      host of a member's task: `member.identity.Host`
{root}.clusters/{cluster}/failure           reason of the latest failure of a member
{root}.clusters/{cluster}/driver            its driver, while it lives, and settings: `cluster.joining.DriverRecord`
{root}.publications/{publication}           the acknowledgements of a published DataFrame
{root}.queries/{query}/{target}             those of a streaming query's latest micro-batch in one target
{root}.queries/{query}                      the same as earlier versions wrote it
{root}.hints/{shard}                        hints of the recovery logs of a hosted processor's shards
"""

from __future__ import annotations

from broadsheet.allocator.keys import check_root


def clusters_prefix(root: str) -> bytes:
    """Return the prefix of all keys of all clusters at a root."""
    return f"{check_root(root)}.clusters/".encode()


def cluster_prefix(root: str, cluster: str) -> bytes:
    """Return the prefix of all keys of one cluster."""
    return clusters_prefix(root) + f"{cluster}/".encode()


def orders_prefix(root: str, cluster: str) -> bytes:
    """Return the prefix of the keys that order a cluster's members to leave."""
    return cluster_prefix(root, cluster) + b"orders/"


def hosts_prefix(root: str, cluster: str) -> bytes:
    """Return the prefix of the keys that hold the hosts of a cluster's members."""
    return cluster_prefix(root, cluster) + b"hosts/"


def driver_key(root: str, cluster: str) -> bytes:
    """Return the key of a cluster's driver."""
    return cluster_prefix(root, cluster) + b"driver"


def is_driver_key(root: str, key: bytes) -> bool:
    """Return whether a key at a root is that of a driver, of whichever cluster."""
    prefix = clusters_prefix(root)
    _, slash, rest = key.removeprefix(prefix).partition(b"/")
    return key.startswith(prefix) and bool(slash) and rest == b"driver"


def failure_key(root: str, cluster: str) -> bytes:
    """Return the key of the latest failure of a cluster's member."""
    return cluster_prefix(root, cluster) + b"failure"


def hints_prefix(root: str) -> str:
    """Return the prefix of the hints of a hosted processor's shards."""
    return f"{check_root(root)}.hints"


def publication_key(root: str, publication: str) -> bytes:
    """Return the key of a publication's acknowledgements."""
    return f"{check_root(root)}.publications/{publication}".encode()


def queries_prefix(root: str) -> bytes:
    """Return the prefix of the keys of all streaming queries."""
    return f"{check_root(root)}.queries/".encode()


def query_key(root: str, query: str, target: str) -> bytes:
    """Return the key of the acknowledgements of a streaming query's latest micro-batch in one target."""
    return queries_prefix(root) + f"{query}/{target}".encode()


def query_records_range(root: str, query: str) -> tuple[bytes, bytes]:
    """Return the range of keys that has a streaming query's records in all targets, and that of earlier versions."""
    key = queries_prefix(root) + query.encode()
    # The end is the first key after all that begin with "{key}/". Ids of queries have one length, so no other query's
    # key is between `key` and its targets.
    return key, key + b"0"
