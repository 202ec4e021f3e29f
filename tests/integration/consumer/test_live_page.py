"""The live page in a headless Chromium: what it shows of real members, to whom, and with how many shards.

`BROADSHEET_PICTURES=1` (`make screenshots`) writes what the tests see into docs/pictures.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import Message

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.consumer.live_page.routes import live_page_routes
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.leases.addresses import parse_store_address
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.opening import open_store
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.rules import commit
from broadsheet.security.auth import Capability, Claims, KeyedAuth, NoAuth
from broadsheet.serving.admin import AdminRoute, AdminServer
from broadsheet.wire.allocation_pb2 import ClusterMember, ListMembersResponse, ListMovesResponse
from broadsheet.wire.journal_pb2 import Header, ProcessSpec, Route
from broadsheet.wire.labels import parse_selector
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec
from broadsheet.wire.state_pb2 import ListReplicasResponse
from broadsheet.wire.watch_pb2 import WatchShardsResponse
from tests.support.browser import Browser, Tab, TabEndedError, open_tab, shared_browser
from tests.support.documents import REPOSITORY
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

HOST = "127.0.0.1"
SOURCE = "test/source"
POISON = "test/poison"
SECONDS_MAX = 300.0
KEYS = b64encode(b"a key of the test, thirty-two bytes").decode()
NODES_MAX: Final = 3_000
"""Elements of the page, however many shards there are."""
_VENDORED = REPOSITORY / "consumer" / "live_page" / "vendored"
_PICTURES = REPOSITORY / "docs" / "pictures"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for this module's tests, each of which has its own tab."""
    with shared_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


async def _picture(tab: Tab, name: str, tmp_path: Path) -> None:
    """Take a picture of what the tab shows: into the docs if asked, else where it goes with the test."""
    directory = _PICTURES if os.environ.get("BROADSHEET_PICTURES") else tmp_path
    content = await tab.picture()
    assert content.startswith(b"\x89PNG")
    (directory / f"live-page-{name}.png").write_bytes(content)


async def _states(tab: Tab) -> dict[str, int]:
    """Return how many shards the page counts in each state, of those that have any."""
    counted = await tab.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-state]')]"
        ".map((e) => [e.dataset.state, Number(e.querySelector('strong').textContent)]))"
    )
    return {state: number for state, number in counted.items() if number}


# Of the files alone.


async def test_page_is_static_files_with_a_strict_policy() -> None:
    """The files need no token, since they hold nothing; browsers keep them by tag, run nothing inline, and call only
    the port that they came from. No other file of the disk can be had.
    """
    verifier = KeyedAuth(KEYS)
    routes = live_page_routes()
    async with (
        AdminServer(HOST, 0, routes=routes, verifier=verifier) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(server.address) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            policy = answer.headers["Content-Security-Policy"]
            html = await answer.text()
            tag = answer.headers["ETag"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|style=", html)
        for path in re.findall(r'(?:src|href)="([^"]+)"', html):
            async with session.get(f"{server.address}/{path}") as answer:
                assert answer.status == 200, path
                assert answer.headers["Content-Security-Policy"] == policy
        async with session.get(server.address, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        for path in ("/page/", "/page/nothing.js", "/page/%2e%2e/admin.py", "/page/..%2fadmin.py"):
            async with session.get(f"{server.address}{path}") as answer:
                assert answer.status == 404, path
    assert {"/", "/page/page.js", "/page/vendored/LICENSES.txt"} <= {route.path for route in routes}


def test_libraries_are_as_their_makers_published_them() -> None:
    """A library that was changed here could not be replaced by its next release, nor trusted as that which it says."""
    told = re.findall(
        r"^(\S+) +\S+ \d+\.\d+\.\d+, .+\n +sha256 (\w+)$",
        (_VENDORED / "LICENSES.txt").read_text(),
        re.MULTILINE,
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _VENDORED.iterdir()
        if path.suffix != ".txt"
    }
    assert dict(told) == found


# Of the browser that shows it.


async def test_browser_that_ends_fails_one_test_at_once_and_no_other(chromium: Browser) -> None:
    """A test whose browser crashes would wait for answers until its patience ends, and so would all after it."""
    with pytest.raises(TabEndedError) as ended:
        async with open_tab(chromium) as tab:
            assert await tab.evaluate("new Intl.NumberFormat(navigator.language).format(1)") == "1"
            chromium.kill()
            await tab.shows("what does not come")
    assert "Chromium said" in ended.value.__notes__[0]

    async with open_tab(chromium) as tab:
        assert await tab.evaluate("1 + 1") == 2


# Of real members.


@pytest.mark.etcd
async def test_page_follows_shards_as_they_fail_and_move(
    cluster: Cluster, journals: JournalClient, chromium: Browser, tmp_path: Path
) -> None:
    """A reader with a keyboard sees shards come, finds the one that failed and why, what explains its place, what moved
    and what a drain would move, in light and in dark; and the page asks nobody but its member.
    """
    cluster.settings["shards"] = ShardConfig(
        restart_delay_seconds=3600.0, restart_delay_seconds_max=3600.0
    )
    tally, other = cluster.tally(), cluster.tally()
    # It would run if it became part of the page.
    tally.broken_by = other.broken_by = "<img src=x onerror=alert(1)>"
    await create_journals(journals, POISON)
    names = [f"orders-{number:02}" for number in range(12)]
    async with (
        cluster.member("a", application=tally, admin_port=0) as one,
        # The shard that fails may be on either.
        cluster.member("b", application=other, zone="zone-b"),
        client_of(one) as client,
        open_tab(chromium) as tab,
    ):
        await tab.open(one.admin_address)
        await tab.shows("● live", "0 of 0 shards", "zone-a#member-a", "zone-b#member-b")
        # What to do where there is nothing to see.
        await tab.shows(
            "There are no shards", "shardctl shards apply -f shards.yaml --address http"
        )

        await client.apply(upserts(*(shard(name, SOURCE, hot_standbys=1) for name in names)))
        await wait_for_primaries(client, *names)
        await tab.holds(
            "document.querySelector('[data-state=serving] strong').textContent === '12'"
        )
        assert await _states(tab) == {"serving": 12}

        await client.apply(upserts(shard("payments", POISON)))
        await Producer(journals).publish(POISON, [tally.broken_by])
        await tab.holds("document.querySelector('[data-state=failed] strong').textContent === '1'")

        # By keyboard: the list, which begins with what is worst, and its first row.
        await tab.press("2")
        await tab.holds("!!document.querySelector('[role=grid] [role=row][id]')")
        assert "payments" in await tab.evaluate(
            "document.querySelector('[role=row][id]').innerText"
        )
        await tab.evaluate("document.querySelector('.body').focus()")
        await tab.press("ArrowDown", "ArrowUp", "Enter")
        await tab.shows(f"cannot count {tally.broken_by}", "Replicas: 1 of 1", "read through")
        # A browser runs what moves the focus after it has drawn.
        await tab.holds("document.activeElement.textContent === 'payments'")
        await tab.prefer("dark")
        await tab.holds("document.documentElement.dataset.theme === 'dark'")
        dark = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        await _picture(tab, "shard", tmp_path)
        await tab.prefer("light")
        await tab.holds("document.documentElement.dataset.theme === 'light'")
        assert await tab.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        await tab.press("Escape")
        await tab.holds("!document.querySelector('aside')")

        # Search: what does not match goes from the list.
        await tab.press("/")
        await tab.write("orders-07 serving")
        await tab.shows("1 of 13 shards")
        await tab.click("[role=row][id]")
        await tab.shows("0 B for the primary to read", "it is primary")
        await tab.press("Escape")
        await tab.evaluate("document.activeElement.blur()")

        # A change is asked about first; what moves shows with its reason.
        await tab.click("[role=row][id]")
        await tab.click("aside p button")
        await tab.shows("Unassign orders-07?", "Its 2 replicas stop")
        # A reader who asks again at once, before the browser tells that the first question was closed, is asked.
        await tab.evaluate(
            "new MutationObserver((_, seen) => {"
            "  seen.disconnect(); document.querySelector('aside p button').click(); })"
            ".observe(document.querySelector('#confirm'), {attributeFilter: ['open']})"
        )
        await tab.click("#confirm button[type=button]")
        await tab.evaluate(
            "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn, 100))))"
        )
        await tab.holds("document.querySelector('#confirm').open")
        await tab.shows("Unassign orders-07?")
        await tab.click("#confirm button[type=button]")
        await tab.holds("!document.querySelector('#confirm').open")
        await tab.press("4")
        assert "unassigned" not in await tab.evaluate("document.body.innerText")
        await tab.click("aside p button")
        await tab.click("#confirm button[type=submit]")
        await tab.shows("unassigned", "remove")
        await tab.press("Escape")

        await tab.press("3")
        await tab.click("[aria-label='Plan drain of zone-b#member-b']")
        await tab.shows("If zone-b#member-b left", "planned by zone-")
        await _picture(tab, "drain", tmp_path)
        await tab.click("[aria-label='Cordon zone-b#member-b']")
        await tab.click("#confirm button[type=submit]")
        await tab.holds("!!document.querySelector('[aria-label=\"Uncordon zone-b#member-b\"]')")
        assert tab.complaints == []
        assert {url.split("/")[2] for url in tab.requested} == {one.admin_address.split("/")[2]}


@pytest.mark.etcd
async def test_page_asks_for_a_token_and_says_what_it_does_not_permit(
    cluster: Cluster, chromium: Browser
) -> None:
    """Without a token there is nothing but the question; a wrong one is asked for again; one that covers some shards
    shows these, and says what else is not permitted.
    """
    auth = KeyedAuth(KEYS)
    mine = Claims(capability=Capability.LIST, selector=parse_selector("team=mine"))
    metadata = dict(auth.metadata(mine))
    token = metadata["authorization"].removeprefix("Bearer ")
    async with (
        cluster.member("a", admin_port=0, auth_keys=KEYS) as service,
        client_of(service, auth) as client,
        open_tab(chromium) as tab,
    ):
        await client.apply(upserts(shard("guarded", SOURCE, team="mine"), shard("others", SOURCE)))
        await wait_for_primaries(client, "guarded", "others")
        await tab.open(service.admin_address)
        await tab.holds("document.querySelector('dialog').open")
        assert "guarded" not in await tab.evaluate("document.body.innerText")
        await tab.write("nonsense")
        await tab.press("Enter")
        await tab.shows("The token was refused")
        await tab.write(token)
        await tab.press("Enter")
        await tab.shows("● live", "1 of 1 shards", "members: not permitted", "zone-a#member-a")
        await tab.holds("!document.querySelector('dialog').open")
        kept = await tab.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
        assert kept.count(token) == 1
        assert kept.index(token) < kept.rindex("{")
        await tab.press("2")
        await tab.shows("guarded")
        assert "others" not in await tab.evaluate("document.body.innerText")
        await tab.click("[role=row][id]")
        await tab.shows("Replicas: 1 of 1")
        await tab.holds(
            "performance.getEntriesByName(new URL('page/may-apply', document.baseURI)).length"
        )
        assert "Unassign" not in await tab.evaluate("document.body.innerText")


async def test_page_asks_once_for_a_token_though_one_refusal_comes_slowly(
    chromium: Browser,
) -> None:
    """Two requests are refused, and the text of one refusal arrives only after the reader gave a token: that refusal
    is of the token before, and asks for no other.
    """
    async with (
        AdminServer(HOST, 0, routes=live_page_routes(), verifier=NoAuth()) as server,
        open_tab(chromium) as tab,
    ):
        await tab.open(f"{server.address}/")
        seen = await tab.evaluate(_SLOW_REFUSAL)

    assert seen == {"asked": ["no token"], "answers": [{"for": "quick"}, {"for": "slow"}]}


_SLOW_REFUSAL: Final = """
import(`${location.origin}/page/connection.js`).then(async ({ Connection }) => {
  const present = window.fetch;
  const asked = [];
  let tell;
  const told = new Promise((resolve) => { tell = resolve; });
  const refusal = (text) => ({ ok: false, status: 401, statusText: "Unauthorized", text });
  window.fetch = async (url, { headers }) => {
    const name = new URL(url).pathname.split("/").pop();
    if (headers.Authorization === "Bearer good") return Response.json({ for: name });
    const text = JSON.stringify({ message: "no token" });
    return refusal(name === "quick" ? async () => text : () => told.then(() => text));
  };
  try {
    const connection = new Connection(async (reason) => { asked.push(reason); return "good"; });
    const slow = connection.get("slow");
    const quick = await connection.get("quick");
    tell();
    return { asked, answers: [quick, await slow] };
  } finally {
    window.fetch = present;
    sessionStorage.clear();
  }
})
"""
"""What a connection asks for, and gets, when the second of two refusals is slow."""


@pytest.mark.etcd
async def test_page_says_when_it_is_not_current_and_goes_on(
    cluster: Cluster, chromium: Browser
) -> None:
    """The member that served the page ends: what is on the screen may no longer be true, and says so. Once the member
    is there again, the page goes on by itself.
    """
    async with open_tab(chromium) as tab:
        async with cluster.member("a", admin_port=0) as service, client_of(service) as client:
            port = int(service.admin_address.rpartition(":")[2])
            await client.apply(upserts(shard("before", SOURCE)))
            await wait_for_primaries(client, "before")
            await tab.open(service.admin_address)
            await tab.shows("● live", "1 of 1 shards")
        await tab.shows("✕ not current", "shards: ")
        async with cluster.member("a", admin_port=port) as service, client_of(service) as client:
            await client.apply(upserts(shard("after", SOURCE)))
            await tab.shows("● live", "2 of 2 shards")


@pytest.mark.etcd
async def test_page_goes_on_with_another_member(cluster: Cluster, chromium: Browser) -> None:
    """The member that served the page dies: another is asked, with the token that the reader gave once and from where
    the table was, and only members get it.
    """
    auth = KeyedAuth(KEYS)
    token = dict(auth.metadata(Claims(capability=Capability.LIST)))["authorization"]
    strangers: list[str] = []
    async with (
        cluster.member("b", admin_port=0, auth_keys=KEYS, zone="zone-b") as other,
        client_of(other, auth) as client,
        _recording_server(strangers) as stranger,
        open_tab(chromium) as tab,
    ):
        async with cluster.member("a", admin_port=0, auth_keys=KEYS) as one:
            dead = one.admin_address
            await client.apply(upserts(shard("before", SOURCE)))
            await wait_for_primaries(client, "before")
            await tab.open(dead)
            await tab.holds("document.querySelector('dialog').open")
            await tab.write(token.removeprefix("Bearer "))
            await tab.press("Enter")
            await tab.shows("● live", "as zone-a#member-a sees it", "1 of 1 shards")
            # Its table has the other's address by now, and a link to each page.
            await tab.press("3")
            await tab.holds(f"!!document.querySelector('a[href=\"{other.admin_address}\"]')")

        await tab.shows("● live", "as zone-b#member-b sees it", f"{other.admin_address}/ is asked")
        await client.apply(upserts(shard("after", SOURCE)))
        await tab.shows("2 of 2 shards")
        assert not await tab.evaluate("document.querySelector('dialog').open")
        refused = await tab.evaluate(f"fetch('{stranger}').then(() => '', (error) => error.name)")
        assert refused == "TypeError"
        hosts = {url.split("/")[2] for url in tab.requested if url.startswith("http")}
        assert {each.split("/")[2] for each in (dead, other.admin_address)} <= hosts
    assert strangers == []


@asynccontextmanager
async def _recording_server(calls: list[str]) -> AsyncIterator[str]:
    """Serve at an address that no member announced, to every page that asks."""

    async def answer(request: web.Request) -> web.Response:
        calls.append(request.path)
        return web.Response(headers={"Access-Control-Allow-Origin": "*"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()


async def test_page_makes_rates_of_offsets_and_an_axis_of_little(chromium: Browser) -> None:
    """Lag says how much is left, and the rate whether it will ever be read; a chart that has just begun has an axis."""
    async with (
        AdminServer(HOST, 0, routes=live_page_routes(), verifier=NoAuth()) as server,
        open_tab(chromium) as tab,
    ):
        await tab.open(f"{server.address}/")
        rates = await tab.evaluate(_RATES)
        ranges = await tab.evaluate(
            "import(`${location.origin}/page/parts.js`).then(({ timeRange }) =>"
            " [timeRange(100, 100), timeRange(100, 400), timeRange(null, 200)])"
        )

    assert rates == {"one": [None, 500, None], "members": {"a#m": 700}}
    assert ranges == [[40, 100], [100, 400], [140, 200]]


_RATES: Final = """
import(`${location.origin}/page/cluster.js`).then(({ Cluster }) => {
  const cluster = new Cluster();
  const present = Date.now;
  const told = (seconds, one, two, journal = "in") => {
    Date.now = () => seconds * 1000;
    cluster.applyReplicas("a#m", { replicas: [
      { shard: "one", slot: 0, behindBytes: "9", readThrough: { [journal]: one } },
      { shard: "two", slot: 0, behindBytes: "0", readThrough: { in: two } },
    ] });
    return cluster.lag.get("one a#m").rate;
  };
  try {
    const seen = [told(10, "1000", "0"), told(12, "2000", "400")];
    const members = Object.fromEntries([...cluster.progressByMember()].map(([id, { rate }]) => [id, rate]));
    // A source that was replaced has no rate.
    return { one: [...seen, told(14, "10", "400", "other")], members };
  } finally {
    Date.now = present;
  }
})
"""
"""What the page makes of three looks at a member's replicas."""


@pytest.mark.etcd
async def test_page_shows_leases_of_stores_that_the_member_was_given(
    cluster: Cluster, etcd: EtcdClient, chromium: Browser, tmp_path: Path
) -> None:
    """A reader with a keyboard sees who has which lease, in two stores, and what changes; a store that is not there is
    named beside them, and a token for some shards shows no lease.
    """
    auth = KeyedAuth(KEYS)
    etcd_store = f"etcd:{cluster.root}-leases?endpoints={cluster.etcd_endpoint}"
    sql_store = f"sql:sqlite:///{tmp_path}/leases.db"
    missing = f"sql:sqlite:///{tmp_path}/nowhere.db"
    async with (
        open_store(parse_store_address(etcd_store)) as store,
        open_store(parse_store_address(sql_store)) as other,
        cluster.member(
            "a", admin_port=0, auth_keys=KEYS, lease_stores=(etcd_store, sql_store, missing)
        ) as service,
        open_tab(chromium) as tab,
        aiohttp.ClientSession() as session,
    ):
        managers = LeaseManager(store), LeaseManager(other)
        for number, manager in enumerate(managers):
            await manager.create_store_if_not_exists()
            for name in ("one", "two"):
                await manager.create_lease(LeaseRecord(key=f"stream-{number}-{name}"))
        taken = await managers[0].take(await _lease(managers[0], "stream-0-one"), "worker-a")
        assert taken is not None
        assert await managers[1].take(await _lease(managers[1], "stream-1-one"), "worker-b")

        await tab.open(service.admin_address)
        await tab.holds("document.querySelector('dialog').open")
        everything = dict(auth.metadata(Claims(capability=Capability.LIST)))
        await tab.write(everything["authorization"].removeprefix("Bearer "))
        await tab.press("Enter")
        await tab.shows("● live")
        # A key that is pressed while the question is still open is its own.
        await tab.holds("!document.querySelector('dialog').open")
        await tab.press("6")
        await tab.shows("stream-0-one", "worker-a", "stream-1-one", "worker-b", "nowhere.db")
        rows = "[...document.querySelectorAll('[role=row][id]')].map((e) => e.innerText.split(/\\s+/).filter(Boolean))"
        states = {row[1]: (row[0], row[2]) for row in await tab.evaluate(rows)}
        assert states == {
            "stream-0-one": ("held", "worker-a"),
            "stream-0-two": ("free", "-"),
            "stream-1-one": ("owned", "worker-b"),
            "stream-1-two": ("free", "-"),
        }
        await tab.evaluate("document.querySelector('.body').focus()")
        await tab.press("End")
        await tab.holds("document.querySelector('.row.cursor').innerText.includes('stream-1-one')")

        # What changes comes by itself, and an owner's leases are found by a button or by words.
        assert await managers[0].update(taken, lambda record: commit(record, Position("4711")))
        await tab.shows("4711")
        await tab.evaluate(
            "document.querySelector('[aria-label=\"Filter by owner\"] button').focus()"
        )
        await tab.press("Enter")
        await tab.holds("document.querySelectorAll('[role=row][id]').length === 1")
        await tab.press("/")
        await tab.write("stream-1")
        await tab.shows("Nothing to show.")
        # Requests without the token, and the question whether it permits changes, are refused.
        assert not [each for each in tab.complaints if "status of 40" not in each]

        narrow = Claims(capability=Capability.LIST, selector=parse_selector("team=mine"))
        headers = dict(auth.metadata(narrow))
        async with session.get(f"{service.admin_address}/page/leases", headers=headers) as answer:
            assert (answer.status, await answer.text()) == (
                403,
                "leases have no labels: the token must not be restricted to some shards\n",
            )


async def _lease(manager: LeaseManager, key: str) -> Versioned:
    found = await manager.get_lease(key)
    assert found is not None
    return found


# Of many shards.


@asynccontextmanager
async def _played_cluster(shards: int, members: int) -> AsyncIterator[AdminServer]:
    """Serve the page of a cluster whose answers are made here: that many shards, each with a primary and a standby.

    Running so many replicas for real would take all the machine; the page gets the same messages.
    """
    ids = [ProcessSpec.ID(zone=f"zone-{'abc'[n % 3]}", suffix=f"m-{n:03}") for n in range(members)]
    ids.sort(key=lambda each: (each.zone, each.suffix))
    header = Header(process_id=ids[0])
    header.etcd.revision = 7
    rows = [_played_shard(number, ids) for number in range(shards)]
    table = WatchShardsResponse(header=header, reset=True, shards=rows)
    listed = ListMembersResponse(
        version="played",
        members=[
            ClusterMember(id=f"{each.zone}#{each.suffix}", shard_limit=4 * shards) for each in ids
        ],
    )

    def answering(path: str, message: Message) -> AdminRoute:
        text = json_format.MessageToJson(message, indent=None)

        async def answer(request: web.Request) -> web.Response:
            del request
            return web.Response(text=text)

        return AdminRoute(path=f"/v1/{path}", method="POST", handler=answer)

    progress = {f"{each.zone}#{each.suffix}": _played_progress(each, rows) for each in ids}

    async def replicas(request: web.Request) -> web.Response:
        return web.Response(text=progress[(await request.json())["member"]])

    async def watch(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        data = json_format.MessageToJson(table, indent=None)
        await stream.write(f"id: 7:1\ndata: {data}\n\n".encode())
        # Nothing changes any more.
        await asyncio.get_running_loop().create_future()
        return stream

    routes = [
        *live_page_routes(),
        AdminRoute(path="/v1/shards/watch", handler=watch, streams=True),
        answering("allocation/list_members", listed),
        answering("allocation/list_moves", ListMovesResponse()),
        AdminRoute(path="/v1/state/list_replicas", method="POST", handler=replicas),
    ]
    async with AdminServer(HOST, 0, routes=routes, verifier=NoAuth()) as server:
        yield server


def _played_shard(number: int, ids: list[ProcessSpec.ID]) -> ListResponse.Shard:
    """Return a shard, every thousandth of which failed, and every hundredth of which starts."""
    code = ReplicaStatus.PRIMARY
    if number % 100 == 50:
        code = ReplicaStatus.BACKFILL
    if number % 1_000 == 500:
        code = ReplicaStatus.FAILED
    spec = ShardSpec(id=f"part-{number:05}", hot_standbys=1)
    spec.sources.add(journal=f"events/{number:05}")
    primary, standby = ids[number % len(ids)], ids[(number + 1) % len(ids)]
    errors = ["of a played failure"] if code == ReplicaStatus.FAILED else []
    return ListResponse.Shard(
        spec=spec,
        route=Route(members=[primary, standby], primary=0),
        status=[
            ReplicaStatus(code=code, errors=errors),
            ReplicaStatus(code=ReplicaStatus.STANDBY),
        ],
    )


def _played_progress(member: ProcessSpec.ID, rows: list[ListResponse.Shard]) -> str:
    """Return how far a member's replicas have come, as JSON: primaries lag by anything from nothing to much."""
    answer = ListReplicasResponse(header=Header(process_id=member))
    for number, row in enumerate(rows):
        primary, standby = row.route.members
        if primary.suffix == member.suffix:
            behind = 2 << (3 * number % 30)
            answer.replicas.add(shard=row.spec.id, slot=0, behind_bytes=behind)
        elif standby.suffix == member.suffix:
            answer.replicas.add(shard=row.spec.id, slot=1)
    return json_format.MessageToJson(answer, indent=None)


async def test_ten_thousand_shards_take_few_elements(chromium: Browser, tmp_path: Path) -> None:
    """A browser copes with so many shards because only what can be seen is in the document: in the map, in the list at
    both of its ends, and filtered by state or by words.
    """
    async with _played_cluster(10_000, members=30) as server, open_tab(chromium) as tab:
        await tab.open(f"{server.address}/")
        await tab.shows("10000 of 10000 shards", "zone-c#m-029")
        assert await _states(tab) == {"serving": 9_890, "starting": 100, "failed": 10}
        nodes = "document.querySelectorAll('*').length"
        assert await tab.evaluate(nodes) < NODES_MAX
        # The cursor of the map tells which replica it stands on.
        await tab.evaluate("document.querySelector('canvas.grid').focus()")
        await tab.press("ArrowRight", "ArrowRight", "ArrowDown", "Home")
        await tab.shows("part-00000: primary on zone-a#m-000, lag 2 B")
        # The members are asked one after the other.
        asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('list_replicas'))"
        await tab.holds(f"{asked}.length >= 30")
        await _picture(tab, "10000", tmp_path)
        await tab.press("Enter")
        await tab.holds("document.querySelector('aside h2').textContent === 'part-00000'")
        await tab.press("Escape")

        await tab.press("2")
        await tab.holds("document.querySelector('[role=row][id]')?.innerText.includes('failed')")
        assert await tab.evaluate("document.querySelector('[role=grid]').ariaRowCount") == "10001"
        await tab.evaluate("document.querySelector('.body').focus()")
        await tab.press("End")
        await tab.holds(
            "[...document.querySelectorAll('[role=row]')].at(-1).innerText.includes('09999')"
        )
        assert await tab.evaluate(nodes) < NODES_MAX
        await tab.click("[data-state=failed]")
        await tab.shows("10 of 10000 shards", "of a played failure")
        await tab.press("/")
        await tab.write("part-03500")
        await tab.shows("1 of 10000 shards")
        # Escape leaves the search: its words stay, and keys are the page's again.
        await tab.press("Escape")
        assert await tab.evaluate("document.querySelector('[type=search]').value") == "part-03500"
        await tab.press("4")
        await tab.holds("document.querySelector('#tab-moves').ariaSelected === 'true'")
        assert not [each for each in tab.complaints if "/v1/" not in each]
