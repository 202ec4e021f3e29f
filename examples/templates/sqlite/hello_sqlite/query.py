"""The query for the top pages, a gRPC call of JSON: its server on members, and its client.

python -m hello_sqlite.query --limit 3
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import msgspec
from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT, Resolver, ShardClient, serving_shard

from hello_sqlite.store import PageStore

SERVICE = "hello_sqlite.Query"
_encode, _decode = msgspec.json.encode, msgspec.json.decode


def query_handler(resolver: Resolver) -> grpc.GenericRpcHandler:
    """Return the server of the query, for `register_services`."""

    async def top(request: Any, context: Any) -> Any:
        through = request.get("read_through", {})
        # The call ends with UNAVAILABLE here if another member is the shard's primary.
        async with serving_shard(
            resolver, context, request["shard"], read_through=through
        ) as serving:
            return {"pages": await serving.call(PageStore.top, int(request["limit"]))}

    method = grpc.unary_unary_rpc_method_handler(
        top, request_deserializer=_decode, response_serializer=_encode
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"Top": method})


async def ask_for_top(
    address: str, shard: str, *, limit: int, read_through: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Return the pages of a shard with most visits.

    Args:
        address: Any members.
        shard: The shard's id.
        limit: Most pages.
        read_through: Offsets to wait for, as `shardctl journals publish` prints them.
    """
    request = {"shard": shard, "limit": limit, "read_through": dict(read_through or {})}
    async with asyncio.timeout(30), ShardClient(address) as client:
        while True:
            (listed,) = [each for each in (await client.list()).shards if each.spec.id == shard]
            if listed.route.members and listed.route.primary >= 0:
                endpoint = listed.route.endpoints[listed.route.primary]
                if not endpoint.startswith("http://"):
                    raise ValueError(
                        f"{endpoint}: use grpc.aio.secure_channel with your certificates"
                    )
                async with grpc.aio.insecure_channel(endpoint.removeprefix("http://")) as channel:
                    call = channel.unary_unary(
                        f"/{SERVICE}/Top", request_serializer=_encode, response_deserializer=_decode
                    )
                    with suppress_unavailable():
                        answer = await call(request)
                        pages: list[dict[str, Any]] = answer["pages"]
                        return pages
            # Another member is just taking over.
            await asyncio.sleep(0.1)


@contextmanager
def suppress_unavailable() -> Iterator[None]:
    """Pass over the answer of a member that is not, or no longer, the shard's primary."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise


async def _print_top(address: str, limit: int) -> None:
    async with ShardClient(address) as client:
        shards = [each.spec.id for each in (await client.list()).shards]
    rows = [row for shard in shards for row in await ask_for_top(address, shard, limit=limit)]
    for row in sorted(rows, key=lambda row: -row["visits"])[:limit]:
        print(f"{row['visits']:6}  {row['milliseconds'] / row['visits']:8.1f} ms  {row['page']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--address", default=os.environ.get("CONSUMER_ADDRESS", CONSUMER_ADDRESS_DEFAULT)
    )
    parser.add_argument("--limit", type=int, default=10)
    options = parser.parse_args()
    asyncio.run(_print_top(options.address, options.limit))
