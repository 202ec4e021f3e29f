"""Runs in a child process: PyPI's `etcd3` 0.12.0 as a second, independent reader and writer of etcd.

Usage: python etcd3_witness.py HOST PORT PREFIX. It reads what the parent wrote, writes things of its own, and prints
one JSON object. It needs `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python`, because its generated code predates
protobuf 4, and must share no process with us, because that setting is global.
"""

from __future__ import annotations

import json
import sys

import etcd3


def main(host: str, port: int, prefix: str) -> dict[str, object]:
    """Read below PREFIX/ours, write below PREFIX/theirs, and return what was seen."""
    client = etcd3.client(host=host, port=port, timeout=10)
    ours = [
        {
            "key": meta.key.decode(),
            "value": value.decode(),
            "create_revision": meta.create_revision,
            "mod_revision": meta.mod_revision,
            "version": meta.version,
            "lease": meta.lease_id,
        }
        for value, meta in client.get_prefix(f"{prefix}/ours/")
    ]
    leases = {entry["lease"] for entry in ours if entry["lease"]}
    lease_info = [client.get_lease_info(lease) for lease in leases]

    lease = client.lease(60)
    client.put(f"{prefix}/theirs/plain", "from etcd3")
    client.put(f"{prefix}/theirs/leased", "on a lease", lease=lease)
    succeeded, _ = client.transaction(
        compare=[client.transactions.version(f"{prefix}/theirs/txn") == 0],
        success=[
            client.transactions.put(f"{prefix}/theirs/txn", "both"),
            client.transactions.put(f"{prefix}/theirs/txn2", "at once"),
            client.transactions.delete(f"{prefix}/theirs/plain"),
        ],
        failure=[],
    )
    return {
        "ours": ours,
        "granted_ttls": [info.grantedTTL for info in lease_info],
        "their_lease": lease.id,
        "txn_succeeded": succeeded,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
