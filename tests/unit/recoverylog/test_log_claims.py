"""Whose a recovery log is, and which claims to one are refused."""

from __future__ import annotations

import pytest

from broadsheet.consumer.errors import ForeignLogError
from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.consumer.recoverylog.log_claims import StoredLog, check_logs, sharers_of
from broadsheet.consumer.recoverylog.ownership import (
    OWNER_PATH,
    LogOwner,
    check_claim,
    claim_of,
    encode_owner,
    is_owner_path,
    owner_record,
)
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import RECOVERY_LOG_OF, label_set
from broadsheet.wire.recorded_op_pb2 import FSMHints, Property
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec

ROOT = "/production"


def spec(shard_id: str, prefix: str = "logs", **labels: str) -> ShardSpec:
    """A shard with a recovery log."""
    made = ShardSpec(
        id=shard_id,
        recovery_log_prefix=prefix,
        hint_prefix="/hints" if prefix else "",
        labels=label_set(labels),
    )
    made.max_txn_duration.seconds = 1
    return made


def moved(shard_id: str, former: str, prefix: str = "logs") -> ShardSpec:
    """A shard that says whose log it took."""
    made = spec(shard_id, prefix)
    made.labels.CopyFrom(label_set((RECOVERY_LOG_OF, former)))
    return made


def check(
    *upserts: ShardSpec,
    stored: dict[str, StoredLog] | None = None,
    present: tuple[ShardSpec, ...] = (),
    primary_hints: FSMHints | None = None,
    deleted: str = "",
) -> None:
    """Check an apply."""
    changes = [ApplyRequest.Change(upsert=each, primary_hints=primary_hints) for each in upserts]
    if deleted:
        changes.append(ApplyRequest.Change(delete=deleted))
    by_id = {each.id: each for each in present}
    check_logs(changes, root=ROOT, stored=stored or {}, spec_of=by_id.get)


def hints_of(owner: LogOwner | None, log: str = "logs/shard-a") -> bytes:
    """Stored hints of a log."""
    properties = [Property(path=OWNER_PATH, content=encode_owner(owner))] if owner else []
    return encode_hints(FSMHints(log=log, properties=properties))


@pytest.mark.parametrize(
    ("owner", "claimant", "is_refused"),
    [
        (None, spec("shard-a"), False),
        (LogOwner(ROOT, "shard-a"), spec("shard-a"), False),
        (LogOwner("/staging", "shard-a"), spec("shard-a"), True),
        (LogOwner(ROOT, "xx/yyyy"), spec("yyyy", "logs/xx"), True),
        (LogOwner("/old", "shard-a"), moved("shard-a", "/old"), False),
        (LogOwner("/older", "shard-a"), moved("shard-a", "/old"), True),
        (LogOwner(ROOT, "xx/yyyy"), moved("yyyy", f"{ROOT}=xx/yyyy", "logs/xx"), False),
    ],
)
def test_log_is_its_owners_or_of_the_former_owner_that_a_label_names(
    owner: LogOwner | None, claimant: ShardSpec, is_refused: bool
) -> None:
    """A log without a record is adopted, a stranger is refused by name with the way to move a log on purpose, and the
    refusal waits for another spec.
    """
    properties = {OWNER_PATH: encode_owner(owner)} if owner is not None else {}
    claim = claim_of(ROOT, claimant)
    if not is_refused:
        check_claim("logs/x", properties, claim)
        assert (owner_record(properties, claim) is None) is (owner == claim.owner)
        return
    with pytest.raises(ForeignLogError, match=f"belongs to {owner}") as refusal:
        check_claim("logs/x", properties, claim)
    assert RECOVERY_LOG_OF in str(refusal.value)
    assert failure_kind(refusal.value) is FailureKind.SPEC


def test_log_that_moves_to_and_fro_never_changes_a_property_and_is_its_last_owners() -> None:
    """Gazette's players refuse a property that changes, and pass over every operation behind it: a Gazette member
    would take the log over as it was before the move. So each owner is recorded at a path of its own.
    """
    old, new = "/old", "/new"
    properties: dict[str, str] = {}
    for root, former in ((old, ""), (new, old), (old, new), (new, old)):
        claim = claim_of(root, moved("shard-a", former) if former else spec("shard-a"))
        check_claim("logs/x", properties, claim)
        record = owner_record(properties, claim)
        assert record is not None
        assert record[0] not in properties
        assert is_owner_path(record[0])
        properties |= dict([record])
        assert owner_record(properties, claim) is None
        with pytest.raises(ForeignLogError, match=f"of root {root}"):
            check_claim("logs/x", properties, claim_of("/other", spec("shard-a")))
    with pytest.raises(ForeignLogError, match=f"of root {new}"):
        check_claim("logs/x", properties, claim_of(old, spec("shard-a")))


@pytest.mark.parametrize("content", ["", "{}", '{"root":1,"shard":"a"}', "\ud800", "[" * 5000])
def test_record_that_cannot_be_read_is_a_refusal_of_our_own(content: str) -> None:
    """The record is foreign bytes; what it is not is never guessed."""
    with pytest.raises(ForeignLogError, match="cannot be read"):
        check_claim("logs/x", {OWNER_PATH: content}, claim_of(ROOT, spec("shard-a")))


def test_shards_whose_ids_make_one_log_are_refused_in_either_order() -> None:
    """`logs` + `xx/yyyy` and `logs/xx` + `yyyy` name one journal: also within one apply, and not if one is deleted."""
    long, short = spec("xx/yyyy"), spec("yyyy", "logs/xx")
    assert sharers_of(long, {"yyyy": short}.get) == ["yyyy"]
    for upserts, present in [((long,), (short,)), ((short,), (long,)), ((long, short), ())]:
        with pytest.raises(ValidationError, match="is the recovery log of shard"):
            check(*upserts, present=present)
    check(short, present=(long,), deleted="xx/yyyy")
    check(spec("yyyy", "logs/zz"), present=(long,))


@pytest.mark.parametrize("now", [spec("shard-a", "other"), spec("shard-a", "")])
def test_log_of_a_present_shard_is_not_exchanged(now: ShardSpec) -> None:
    """The primary would record on in the old log, and the next recovery would not find its state."""
    stored = {"shard-a": StoredLog(spec=spec("shard-a"))}
    with pytest.raises(ValidationError, match="its state is in logs/shard-a"):
        check(now, stored=stored)
    check(spec("shard-a"), stored=stored)


def test_hints_of_another_log_or_shard_refuse_an_apply() -> None:
    """Hints below the same prefix tell of the other root before the log is touched, and would be overwritten."""
    check(spec("shard-a"), stored={"shard-a": StoredLog(hints=hints_of(LogOwner(ROOT, "shard-a")))})
    check(spec("shard-a"), stored={"shard-a": StoredLog(hints=hints_of(None))})
    check(spec("shard-a"), stored={"shard-a": StoredLog(hints=b"\xff")})
    with pytest.raises(ValidationError, match="shard shard-a of root /staging"):
        theirs = hints_of(LogOwner("/staging", "shard-a"))
        check(spec("shard-a"), stored={"shard-a": StoredLog(hints=theirs)})
    with pytest.raises(ValidationError, match="holds those of logs/other"):
        check(spec("shard-a"), stored={"shard-a": StoredLog(hints=hints_of(None, "logs/other"))})
    held = {"shard-a": StoredLog(hints=hints_of(None, "logs/other"))}
    check(spec("shard-a"), stored=held, primary_hints=FSMHints(log="logs/shard-a"))
    with pytest.raises(ValidationError, match=r"primary_hints\.log: expected 'logs/shard-a'"):
        check(spec("shard-a"), stored=held, primary_hints=FSMHints(log="logs/other"))


def test_label_of_a_former_owner_must_name_a_root() -> None:
    """A label without a root would silently adopt nothing."""
    validate_shard_spec(moved("shard-a", "/old=shard-b"))
    with pytest.raises(ValidationError, match="former owner's root"):
        validate_shard_spec(moved("shard-a", "shard-b"))


def placed(prefix: str, shard_id: str = "shard-a") -> ShardSpec:
    """A shard whose hints are below a prefix."""
    made = spec(shard_id)
    made.hint_prefix = prefix
    return made


@pytest.mark.parametrize(
    ("prefix", "shard_id"),
    [
        ("/hints", "shard-a"),
        ("/my/hints", "acme/items/part-000"),
        ("/gazette/hints/assign", "shard-a"),
        (f"{ROOT}/hints", "items/shard-a"),
        (ROOT, "shard-a"),
        ("/gazette/consumers/other", "shard-a"),
        ("/items-of-mine", "members.x/shard-a"),
    ],
)
def test_hints_below_a_path_that_is_no_key_space_are_accepted(prefix: str, shard_id: str) -> None:
    """Gazette's applications put hints outside their roots, and ids of shards have directories of any name."""
    check(placed(prefix, shard_id))


@pytest.mark.parametrize(
    ("prefix", "shard_id", "taken"),
    [
        ("/broadsheet.v1", "shard-a", "/broadsheet.v1"),
        (f"/broadsheet.v1{ROOT}/leader", "shard-a", "/broadsheet.v1"),
        (f"/broadsheet.v1{ROOT}/hints", "shard-a", "/broadsheet.v1"),
        (f"{ROOT}/items", "shard-a", f"{ROOT}/items"),
        (f"{ROOT}/members", "shard-a", f"{ROOT}/members"),
        (f"{ROOT}/assign/shard-a#z#m#0", "shard-a", f"{ROOT}/assign"),
        (ROOT, "items/shard-a", f"{ROOT}/items"),
        ("/other/app", "items/shard-a", "/other/app/items"),
        ("/other", "app/members/shard-a", "/other/app/members"),
        ("/other/app/items/hints", "shard-a", "/other/app/items"),
        ("/gazette/cluster/items", "shard-a", "/gazette/cluster/items"),
        ("/other/leases", "shard-a", "/other/leases"),
    ],
)
def test_hints_among_keys_of_an_allocator_are_refused(
    prefix: str, shard_id: str, taken: str
) -> None:
    """A prefix names any key that the member may write: another application's items, or who leads. One apply would then
    create or damage them, in the name of a member.
    """
    with pytest.raises(ValidationError, match=rf"upsert.hint_prefix.* among the keys of {taken}\."):
        check(placed(prefix, shard_id))


def test_hints_of_a_shard_that_has_its_prefix_stay_where_they_are() -> None:
    """A shard that another member accepted must still be changeable, to disable it for example."""
    held = placed("/other/app/items/hints")
    check(held, stored={"shard-a": StoredLog(spec=held)})


def test_names_within_the_root_say_nothing_about_its_hints() -> None:
    """An application may be called like a directory of an allocator."""
    made = placed("/apps/items/hints")
    change = ApplyRequest.Change(upsert=made)
    check_logs([change], root="/apps/items", stored={}, spec_of=lambda _: None)


def test_two_shards_with_one_key_of_hints_are_refused() -> None:
    """Their logs differ, so each would replace the hints of the other, and neither could be recovered by them."""
    first, second = placed("/hints/acme", "part-000"), placed("/hints", "acme/part-000")
    second.recovery_log_prefix = "other-logs"

    with pytest.raises(
        ValidationError, match="shard part-000 has its hints at /hints/acme/part-000"
    ):
        check(second, present=(first,))
    with pytest.raises(ValidationError, match="hint_prefix"):
        check(first, second)
