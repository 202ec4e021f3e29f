"""Answers and clusters as HTML: readable, bounded, and never more than text, whatever the names are."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from broadsheet.allocator.model import MemberId
from broadsheet.consumer.client.shard_client import ShardTable
from broadsheet.notebook import load_ipython_extension
from broadsheet.notebook.answers import FORMATTERS
from broadsheet.notebook.html_tables import CELL_CHARACTERS_MAX, ROWS_MAX, html_table
from broadsheet.spark_bridge.cluster.cluster_html import cluster_html
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.errors import ClusterStoppedError
from broadsheet.wire.allocation_pb2 import (
    ChangeKind,
    ClusterMember,
    ListMembersResponse,
    MemberChange,
    PlannedChange,
    PlanResponse,
    WaitingChange,
    WaitReason,
)
from broadsheet.wire.journal_pb2 import ProcessSpec, Route
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec, StatResponse
from broadsheet.wire.watch_pb2 import WatchShardsResponse

EVIL = "<img src=x onerror=alert(1)>\"'&"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = io.StringIO()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text.write(data + "\n")


def _read(html: str) -> _Tags:
    parser = _Tags()
    parser.feed(html)
    assert parser.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "a"}
    return parser


def _shard(name: str) -> ListResponse.Shard:
    return ListResponse.Shard(
        spec=ShardSpec(id=name, sources=[ShardSpec.Source(journal=EVIL)]),
        route=Route(members=[ProcessSpec.ID(zone=EVIL, suffix="m")], primary=0, endpoints=["x"]),
        status=[ReplicaStatus(code=ReplicaStatus.FAILED, errors=[EVIL])],
    )


def _table() -> ShardTable:
    table = ShardTable()
    table.apply(WatchShardsResponse(shards=[_shard(EVIL)]))
    return table


ANSWERS = [
    ListResponse(shards=[_shard(EVIL)]),
    _shard(EVIL),
    _table(),
    StatResponse(read_through={EVIL: 7}, publish_at={EVIL: 9}),
    PlanResponse(
        plan_id=EVIL,
        changes=[PlannedChange(kind=ChangeKind.CHANGE_KIND_ADD, shard=EVIL, member=EVIL)],
        members=[MemberChange(member=EVIL, limit=3)],
        waits=[WaitingChange(shard=EVIL, reason=WaitReason.WAIT_REASON_UNSPECIFIED, detail=EVIL)],
    ),
    ListMembersResponse(members=[ClusterMember(id=EVIL, endpoint=f"http://{EVIL}")]),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answer_in_ipython_is_a_table_in_which_names_are_text(
    answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of shards, journals and members, and errors, are the choice of others: none may become a tag."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # not the developer's own
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call] # IPython's has no types
    load_ipython_extension(shell)
    load_ipython_extension(shell)

    shown, _ = shell.display_formatter.format(answer)

    assert {type(each) for each in ANSWERS} == FORMATTERS.keys()
    assert EVIL in _read(shown["text/html"]).text.getvalue()


def test_html_table_is_bounded_and_says_what_is_left_out() -> None:
    """A notebook's file keeps each output: a listing of 10,000 shards must not be megabytes."""
    html = html_table("t", ["A"], [["x" * 10_000]] * 10_000, notes=["n" * 10_000] * 1_000)

    assert html.count("<tr>") == ROWS_MAX + 1
    assert f"{10_000 - ROWS_MAX} more rows" in html
    assert "990 more notes" in html
    assert len(html) < 100 * CELL_CHARACTERS_MAX


def test_html_table_links_only_to_pages() -> None:
    """A member tells its own addresses: a link must not run a script."""
    urls = ["http://a/b?c=1&d", "https://a", "javascript:alert(1)", "data:text/html,x", "file:///a"]
    read = _read(html_table("t", ["A"], [[url] for url in urls]))

    assert read.links == urls[:2]


@dataclass
class _Cluster:
    """What a `ShardCluster` shows of itself."""

    root: str = EVIL
    failure: str = ""
    there: tuple[MemberInfo, ...] = ()
    error: Exception | None = field(default=None)

    def members(self) -> tuple[MemberInfo, ...]:
        if self.error is not None:
            raise self.error
        return self.there

    def last_failure(self) -> str:
        return self.failure


def test_cluster_shows_members_and_its_last_failure() -> None:
    """What a notebook's user asks first: who is there, where, and why not more."""
    member = MemberInfo(
        member_id=MemberId("zone", "app-0-1"),
        endpoint="http://10.0.0.5:8080",
        partition=0,
        attempt=1,
        exiting=False,
        executor_id="3",
        log_url="http://worker:8081/logPage",
    )
    read = _read(cluster_html(_Cluster(there=(member,), failure=EVIL)))

    assert re.search(r"1 member\n", read.text.getvalue())
    assert f"the last failure: {EVIL}" in read.text.getvalue()
    assert read.links == ["http://10.0.0.5:8080", "http://worker:8081/logPage"]


def test_cluster_that_does_not_run_shows_why_instead_of_raising() -> None:
    """The last line of a cell is shown: its error would hide what the cell did."""
    html = cluster_html(_Cluster(error=ClusterStoppedError(EVIL)))

    assert EVIL in _read(html).text.getvalue()
