"""Keys that the bridge keeps in etcd: beside an allocator's root, never under it, where every key has its meaning.

{root}.clusters/{cluster}/stop          tells a cluster's members to stop, and how
{root}.publications/{publication}       the acknowledgements of a published DataFrame
"""

from __future__ import annotations

from allocator.core.keys import check_root


def stop_key(root: str, cluster: str) -> bytes:
    """Return the key whose appearance stops a cluster's members."""
    return f"{check_root(root)}.clusters/{cluster}/stop".encode()


def failure_key(root: str, cluster: str) -> bytes:
    """Return the key that holds why one of a cluster's members failed last."""
    return f"{check_root(root)}.clusters/{cluster}/failure".encode()


def publication_key(root: str, publication: str) -> bytes:
    """Return the key of a publication's acknowledgements."""
    return f"{check_root(root)}.publications/{publication}".encode()
