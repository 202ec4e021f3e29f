"""Who claims leadership, and when: every rule of an election on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from allocator.core.keys import AuxiliaryKeys
from allocator.core.model import Member, MemberId
from allocator.core.ops import KeyValue
from allocator.leadership.election import Election, LeadershipConfig, Verdict, View
from allocator.leadership.records import CandidateRecord, EpochRecord, LeaderRecord, encoded
from tests.support.memory_cluster import JsonMember

KEYS = AuxiliaryKeys("/cluster")
CONFIG = LeadershipConfig(suspect_after_seconds=6.0, confirm_seconds=4.0, claim_grace_seconds=1.0)
OLD, MIDDLE, YOUNG = (MemberId("a", name) for name in ("zzz-old", "middle", "aaa-young"))
BORN = {OLD: 10, MIDDLE: 20, YOUNG: 30}


def kv(key: bytes, value: bytes, *, revision: int, lease: int = 0) -> KeyValue:
    """A key written once."""
    return KeyValue(
        key=key,
        value=value,
        create_revision=revision,
        mod_revision=revision,
        version=1,
        lease=lease,
    )


def view(
    own: MemberId,
    *,
    exiting: tuple[MemberId, ...] = (),
    foreign: tuple[MemberId, ...] = (),
    leader: MemberId | None = None,
    beat: int = 0,
    leaving: tuple[MemberId, ...] = (),
) -> View:
    """Three members, each on the lease of its own number; `foreign` ones have no candidate key."""
    members: Mapping[MemberId, Member] = {
        m: Member(
            member_id=m,
            value=JsonMember(5, exiting=m in exiting),
            kv=kv(b"/m/" + str(m).encode(), b"", revision=born, lease=born),
        )
        for m, born in BORN.items()
    }
    kvs = {
        KEYS.candidate(m): kv(
            KEYS.candidate(m),
            encoded(CandidateRecord(may_lead=m not in leaving)),
            revision=born + 1,
            lease=born,
        )
        for m, born in BORN.items()
        if m not in foreign
    }
    if leader is not None:
        record = LeaderRecord(member=str(leader), epoch=3, beat=beat)
        kvs[KEYS.leader] = kv(KEYS.leader, encoded(record), revision=40 + beat, lease=BORN[leader])
        epoch = EpochRecord(member=str(leader), epoch=3)
        kvs[KEYS.epoch] = kv(KEYS.epoch, encoded(epoch), revision=40)
    return View.of(own, KEYS, members, kvs)


def test_election_without_leader_oldest_claims_at_once_and_others_in_turn() -> None:
    """The oldest (not the least by name) claims now; the next one a grace later, the third two."""
    assert Election(CONFIG).verdict(view(OLD), 100.0) == Verdict(claim=True)
    election = Election(CONFIG)
    assert election.verdict(view(YOUNG), 100.0) == Verdict(again_after_seconds=2.0)
    assert election.verdict(view(YOUNG), 101.5) == Verdict(again_after_seconds=0.5)
    assert election.verdict(view(YOUNG), 102.0) == Verdict(claim=True)


def test_election_prefers_a_member_that_stays_over_an_older_one_that_leaves() -> None:
    """The oldest is exiting: the next one is first, and takes over from it even while it leads and beats."""
    assert Election(CONFIG).verdict(view(MIDDLE, exiting=(OLD,)), 0.0).claim
    assert not Election(CONFIG).verdict(view(OLD, exiting=(OLD,)), 0.0).claim
    assert Election(CONFIG).verdict(view(MIDDLE, exiting=(OLD,), leader=OLD), 0.0).claim
    assert not Election(CONFIG).verdict(view(YOUNG, exiting=(OLD,), leader=OLD), 0.0).claim
    everyone = (OLD, MIDDLE, YOUNG)
    assert not Election(CONFIG).verdict(view(MIDDLE, exiting=everyone, leader=OLD), 0.0).claim


def test_election_leader_that_beats_is_left_alone_though_a_younger_one() -> None:
    """Leadership is not taken from a healthy leader, whoever would be preferred: each change costs something."""
    election = Election(CONFIG)
    for beat in range(20):
        now = 5.0 * beat
        assert not election.verdict(view(OLD, leader=YOUNG, beat=beat), now).claim


def test_election_leader_that_stands_still_is_suspected_confirmed_and_superseded() -> None:
    """Six seconds without a beat, then a question to etcd, then four more: by the observer's own clock."""
    election, stuck = Election(CONFIG), view(MIDDLE, leader=OLD, beat=7)
    assert election.verdict(stuck, 50.0) == Verdict(again_after_seconds=6.0)
    assert election.verdict(stuck, 56.0) == Verdict(confirm=True)
    assert election.verdict(stuck, 90.0) == Verdict(confirm=True), "etcd did not answer yet"
    election.confirmed(90.0)
    assert election.verdict(stuck, 93.0) == Verdict(again_after_seconds=1.0)
    assert election.verdict(stuck, 94.0) == Verdict(claim=True)


def test_election_beat_after_suspicion_clears_it() -> None:
    """One beat, and the leader has all of its time again: etcd may have been away for a while."""
    election = Election(CONFIG)
    election.verdict(view(MIDDLE, leader=OLD, beat=7), 0.0)
    assert election.verdict(view(MIDDLE, leader=OLD, beat=7), 6.0).confirm
    election.confirmed(6.0)
    beaten = view(MIDDLE, leader=OLD, beat=8)
    assert election.verdict(beaten, 9.9) == Verdict(again_after_seconds=6.0)
    assert election.verdict(beaten, 15.9) == Verdict(confirm=True)


def test_election_candidate_younger_than_a_foreign_member_never_claims() -> None:
    """A member that knows no elections acts when it is the oldest: no candidate younger than it may ever act."""
    for own in (MIDDLE, YOUNG):
        assert Election(CONFIG).verdict(view(own, foreign=(OLD,)), 1e9) == Verdict()
    # The oldest is one of ours, and exiting: still nobody else may, for the foreign one would be next.
    exiting_oldest = view(OLD, foreign=(MIDDLE,), exiting=(OLD,))
    assert Election(CONFIG).verdict(exiting_oldest, 0.0).claim
    assert Election(CONFIG).verdict(view(YOUNG, foreign=(MIDDLE,)), 1e9) == Verdict()
    # A foreign one that is younger than everyone does not matter.
    assert Election(CONFIG).verdict(view(MIDDLE, foreign=(YOUNG,), exiting=(OLD,)), 0.0).claim


def test_election_leadership_ends_once_a_foreign_member_is_older() -> None:
    """The same keys, but the older member lost its candidate key: what we hold is worth nothing until it is gone."""
    assert view(MIDDLE, leader=MIDDLE).own_leadership() is not None
    assert view(MIDDLE, leader=MIDDLE, foreign=(OLD,)).own_leadership() is None
    assert view(OLD, leader=MIDDLE).own_leadership() is None


def test_election_candidate_key_of_a_former_life_does_not_count() -> None:
    """A key on another lease than the member's was put by a process that is gone: the member is a foreign one."""
    kept = view(MIDDLE)
    assert set(kept.candidates) == set(BORN)
    key = KEYS.candidate(OLD)
    stale = kv(key, encoded(CandidateRecord()), revision=11, lease=99)
    found = View.of(MIDDLE, KEYS, kept.members, {key: stale})
    assert found.candidates == {}


def test_election_member_about_to_leave_is_passed_over_but_not_foreign() -> None:
    """Who resigned keeps its key: the others need neither wait for it nor take it for a foreign member."""
    assert Election(CONFIG).verdict(view(MIDDLE, leaving=(OLD,)), 0.0).claim
    assert Election(CONFIG).verdict(view(OLD, leaving=(OLD,)), 0.0) == Verdict()


def test_election_candidate_whose_key_went_first_is_no_foreign_member() -> None:
    """Two keys of one lease vanish together, but are seen on two watches: for that moment nobody loses anything."""
    before = view(MIDDLE, leader=MIDDLE)
    kvs = {KEYS.leader: before.leader_kv, KEYS.epoch: before.epoch_kv}
    seen = {key: found for key, found in kvs.items() if found is not None}
    after = View.of(MIDDLE, KEYS, before.members, seen, before)
    assert after.own_leadership() is not None
    again = View.of(MIDDLE, KEYS, before.members, seen, after)
    assert again.own_leadership() is not None
    reborn = dict(before.members)
    reborn[OLD] = replace(reborn[OLD], kv=replace(reborn[OLD].kv, create_revision=15))
    assert View.of(MIDDLE, KEYS, reborn, seen, after).own_leadership() is None, "another life"
