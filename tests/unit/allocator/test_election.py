"""Who claims leadership, and when: every rule of an election on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.leader.election import (
    CandidateRecord,
    Election,
    ElectionAction,
    ElectionDecision,
    ElectionView,
    EpochRecord,
    LeaderRecord,
    LeadershipConfig,
    encoded,
)
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import KeyValue
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
    outdated: tuple[MemberId, ...] = (),
) -> ElectionView:
    """Three members, each on the lease of its own number; `foreign` ones have no candidate key."""
    members: Mapping[MemberId, Member] = {
        m: Member(
            member_id=m,
            value=JsonMember(5, exiting=m in exiting, is_outdated=m in outdated),
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
    return ElectionView.of(own, KEYS, members, kvs)


class Voter:
    """A member that looks at an election, and then decides."""

    def __init__(self) -> None:
        self.election = Election(CONFIG)

    def decides(self, view: ElectionView, now: float) -> ElectionDecision:
        """Return what it does after a look."""
        self.election = self.election.observed(view, now)
        return self.election.decision(view, now)

    def claims(self, view: ElectionView, now: float) -> bool:
        """Return whether it claims after a look."""
        return self.decides(view, now) == CLAIM

    def confirms(self, now: float) -> None:
        """Hear that etcd answered."""
        self.election = self.election.confirmed(now)


CLAIM = ElectionDecision(ElectionAction.CLAIM, again_after_seconds=1.0)
CONFIRM = ElectionDecision(ElectionAction.CONFIRM, again_after_seconds=0.0)


def test_election_without_leader_oldest_claims_at_once_and_others_in_turn() -> None:
    """The oldest (not the least by name) claims now; the next one a grace later, the third two."""
    assert Voter().decides(view(OLD), 100.0) == CLAIM
    voter = Voter()
    assert voter.decides(view(YOUNG), 100.0) == ElectionDecision(again_after_seconds=2.0)
    assert voter.decides(view(YOUNG), 101.5) == ElectionDecision(again_after_seconds=0.5)
    assert voter.decides(view(YOUNG), 102.0) == CLAIM


def test_election_prefers_a_member_that_stays_over_an_older_one_that_leaves() -> None:
    """The oldest is exiting: the next one is first, and takes over from it even while it leads and beats."""
    assert Voter().claims(view(MIDDLE, exiting=(OLD,)), 0.0)
    assert not Voter().claims(view(OLD, exiting=(OLD,)), 0.0)
    assert Voter().claims(view(MIDDLE, exiting=(OLD,), leader=OLD), 0.0)
    assert not Voter().claims(view(YOUNG, exiting=(OLD,), leader=OLD), 0.0)
    everyone = (OLD, MIDDLE, YOUNG)
    assert not Voter().claims(view(MIDDLE, exiting=everyone, leader=OLD), 0.0)


def test_election_leader_that_beats_is_left_alone_though_a_younger_one() -> None:
    """Leadership is not taken from a healthy leader, whoever would be preferred: each change costs something."""
    voter = Voter()
    for beat in range(20):
        now = 5.0 * beat
        assert not voter.claims(view(OLD, leader=YOUNG, beat=beat), now)


def test_election_leader_that_stands_still_is_suspected_confirmed_and_superseded() -> None:
    """Six seconds without a beat, then a question to etcd, then four more: by the observer's own clock."""
    voter, stuck = Voter(), view(MIDDLE, leader=OLD, beat=7)
    assert voter.decides(stuck, 50.0) == ElectionDecision(again_after_seconds=6.0)
    assert voter.decides(stuck, 56.0) == CONFIRM
    assert voter.decides(stuck, 90.0) == CONFIRM, "etcd did not answer yet"
    voter.confirms(90.0)
    assert voter.decides(stuck, 93.0) == ElectionDecision(again_after_seconds=1.0)
    assert voter.decides(stuck, 94.0) == CLAIM


def test_election_beat_after_suspicion_clears_it() -> None:
    """One beat, and the leader has all of its time again: etcd may have been away for a while."""
    voter = Voter()
    voter.decides(view(MIDDLE, leader=OLD, beat=7), 0.0)
    assert voter.decides(view(MIDDLE, leader=OLD, beat=7), 6.0) == CONFIRM
    voter.confirms(6.0)
    beaten = view(MIDDLE, leader=OLD, beat=8)
    assert voter.decides(beaten, 9.9) == ElectionDecision(again_after_seconds=6.0)
    assert voter.decides(beaten, 15.9) == CONFIRM


def test_election_candidate_younger_than_a_foreign_member_never_claims() -> None:
    """A member that knows no elections acts when it is the oldest: no candidate younger than it may ever act."""
    for own in (MIDDLE, YOUNG):
        assert Voter().decides(view(own, foreign=(OLD,)), 1e9) == ElectionDecision()
    # The oldest is one of ours, and exiting: still nobody else may, for the foreign one would be next.
    exiting_oldest = view(OLD, foreign=(MIDDLE,), exiting=(OLD,))
    assert Voter().claims(exiting_oldest, 0.0)
    assert Voter().decides(view(YOUNG, foreign=(MIDDLE,)), 1e9) == ElectionDecision()
    # A foreign one that is younger than everyone does not matter.
    assert Voter().claims(view(MIDDLE, foreign=(YOUNG,), exiting=(OLD,)), 0.0)


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
    found = ElectionView.of(MIDDLE, KEYS, kept.members, {key: stale})
    assert found.candidates == {}


def test_election_member_about_to_leave_is_passed_over_but_not_foreign() -> None:
    """Who resigned keeps its key: the others need neither wait for it nor take it for a foreign member."""
    assert Voter().claims(view(MIDDLE, leaving=(OLD,)), 0.0)
    assert Voter().decides(view(OLD, leaving=(OLD,)), 0.0) == ElectionDecision()


def test_election_candidate_whose_key_went_first_is_no_foreign_member() -> None:
    """Two keys of one lease vanish together, but are seen on two watches: for that moment nobody loses anything."""
    before = view(MIDDLE, leader=MIDDLE)
    kvs = {KEYS.leader: before.leader_kv, KEYS.epoch: before.epoch_kv}
    seen = {key: found for key, found in kvs.items() if found is not None}
    after = ElectionView.of(MIDDLE, KEYS, before.members, seen, before)
    assert after.own_leadership() is not None
    again = ElectionView.of(MIDDLE, KEYS, before.members, seen, after)
    assert again.own_leadership() is not None
    reborn = dict(before.members)
    reborn[OLD] = replace(reborn[OLD], kv=replace(reborn[OLD].kv, create_revision=15))
    assert ElectionView.of(MIDDLE, KEYS, reborn, seen, after).own_leadership() is None, (
        "another life"
    )


def test_election_member_without_candidate_key_stands_first() -> None:
    """It writes its key and looks again; a turn to claim begins only when the key shows."""
    voter = Voter()
    stands = ElectionDecision(ElectionAction.STAND, again_after_seconds=1.0)
    assert voter.decides(view(OLD, foreign=(OLD,)), 100.0) == stands
    assert voter.election == Election(CONFIG), "nothing is timed yet"
    assert voter.decides(view(MIDDLE), 200.0) == ElectionDecision(again_after_seconds=1.0)


def test_election_question_changes_nothing() -> None:
    """Asked twice at the same time, it says the same: only a look and an answer of etcd's change what is known."""
    stuck = view(MIDDLE, leader=OLD, beat=7)
    looked = Election(CONFIG).observed(stuck, 0.0)
    for now, expected in ((5.0, ElectionDecision(again_after_seconds=1.0)), (6.0, CONFIRM)):
        assert looked.decision(stuck, now) == looked.decision(stuck, now) == expected
    assert looked.observed(stuck, 6.0) == looked, "the same beat is no news"


def test_election_times_are_shares_of_a_long_lease() -> None:
    """Beats that take long because etcd does must not cost a leader its epoch while its lease lives on."""
    assert LeadershipConfig.for_lease(20.0) == LeadershipConfig.for_lease(2.0) == LeadershipConfig()
    long = LeadershipConfig.for_lease(60.0)
    assert (long.suspect_after_seconds, long.confirm_seconds) == (18.0, 12.0)
    assert long.suspect_after_seconds + long.confirm_seconds < 60.0


def test_leader_of_a_later_release_is_not_superseded() -> None:
    """Its beat cannot be read, so its silence cannot be told; the key ends with its lease, and then we may claim."""
    kept = view(YOUNG, leader=OLD)
    assert kept.leader_kv is not None
    record = kv(KEYS.leader, b'{"leads":"a#zzz-old","min_reader":2}', revision=50, lease=BORN[OLD])
    candidates = {
        KEYS.candidate(m): kv(KEYS.candidate(m), b"{}", revision=born + 1, lease=born)
        for m, born in BORN.items()
    }
    seen = ElectionView.of(YOUNG, KEYS, kept.members, {**candidates, KEYS.leader: record})
    voter = Voter()
    assert voter.decides(seen, 100.0) == ElectionDecision()
    assert voter.decides(seen, 1000.0) == ElectionDecision()
    assert seen.leader_refusal.startswith("min_reader: a later release wrote")
    # It is gone, and so is its record.
    gone = ElectionView.of(YOUNG, KEYS, kept.members, candidates)
    assert voter.decides(gone, 1002.0).action is ElectionAction.WAIT
    assert voter.claims(gone, 1004.5)


def test_election_outdated_member_is_superseded_though_it_beats() -> None:
    """It does not know the level of stored formats, and would give itself the shards that it misreads."""
    assert Voter().claims(view(MIDDLE, outdated=(OLD,), leader=OLD), 0.0)
    assert not Voter().claims(view(YOUNG, outdated=(OLD,), leader=OLD), 0.0)
    # The current one, which is younger, is not given up for it.
    assert view(YOUNG, outdated=(OLD,), leader=MIDDLE).leading_member() == MIDDLE
    assert Voter().claims(view(MIDDLE, outdated=(OLD,)), 0.0)


def test_election_exiting_member_does_not_fight_with_an_outdated_one() -> None:
    """An earlier release claims at once over a leader that exits: neither would ever get anything done."""
    seen = view(MIDDLE, outdated=(OLD,), exiting=(MIDDLE, YOUNG), leader=OLD)
    assert Voter().decides(seen, 100.0) == ElectionDecision()
    # One that stays claims, whoever exits.
    assert Voter().claims(view(YOUNG, outdated=(OLD,), exiting=(MIDDLE,), leader=OLD), 0.0)
    # The key of an earlier life does not lead.
    gone = view(MIDDLE, outdated=(OLD,), exiting=(MIDDLE,), leader=OLD)
    assert gone.leader_kv is not None
    assert not replace(gone, leader_kv=replace(gone.leader_kv, lease=99)).is_led_by_outdated()
