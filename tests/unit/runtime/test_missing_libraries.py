"""Features whose library is not installed: each error names the extra, the packages and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from broadsheet.runtime.libraries import missing_library, needing

_PROGRAM: Final = '''
import json, sys

LACKING = set(json.loads(sys.argv[1]))

class Absent:
    """Finds no library that this environment is to lack, before those that would find it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

import numpy as np

from broadsheet.cli.application_name import load_attribute
from broadsheet.journals import MappedJournal, NDJSON, Publisher
from broadsheet.journals.content.arrow import ArrowType
from broadsheet.journals.content.avro import AvroType
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import batch_of
from broadsheet.journals.message.framing import Frames
from broadsheet.journals.fragment_decoders import _imported_cramjam, _imported_zstandard
from broadsheet.journals.message.uuid import MessageClock
from broadsheet.broker.fragment_stores import import_obstore

def batch():
    payload = b'{"number": 1}'
    frames = Frames(np.array([0]), np.array([len(payload)]), [payload])
    return batch_of("a/journal", frames, JsonType())[0]

def publish():
    import pyarrow as pa
    rows = pa.table({"number": [1.5, 2.5]})
    Publisher(MessageClock(), 1).publish_batch(MappedJournal("a/journal", NDJSON), rows, JsonType())

FEATURES = {
    "to_arrow": lambda: batch().to_arrow(),
    "to_pandas": lambda: batch().to_pandas(),
    "to_polars": lambda: batch().to_polars(),
    "publish_batch": publish,
    "arrow": ArrowType,
    "avro": AvroType,
    "zstandard": _imported_zstandard,
    "cramjam": _imported_cramjam,
    "obstore": import_obstore,
    "application": lambda: load_attribute("broadsheet.consumer.keyed.grouping:Any", option="APP"),
}
found = {}
for name, use in FEATURES.items():
    try:
        use()
        found[name] = "works"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
'''


def _found(*lacking: str) -> dict[str, str]:
    """Return what each feature says in a process that lacks libraries."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, json.dumps(lacking)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_features_of_a_bare_installation_name_the_extra_that_each_lacks() -> None:
    """`No module named 'pyarrow'` leaves a user to guess which of our extras has it, and in which version."""
    found = _found(
        *("pandas", "polars", "pyarrow", "orjson", "fastavro"),
        *("zstandard", "cramjam", "obstore"),
    )

    assert found["to_arrow"].startswith(
        "ExtraMissingError: MessageBatch.to_arrow needs pyarrow (the extra `spark`)"
    )
    assert found["to_pandas"].startswith("ExtraMissingError: MessageBatch.to_pandas needs pandas")
    assert found["to_polars"].startswith(
        "ExtraMissingError: MessageBatch.to_polars needs polars and pyarrow (the extra `polars`)"
    )
    assert found["arrow"].startswith("ExtraMissingError: Arrow messages needs pyarrow")
    assert "(the extra `avro`)" in found["avro"]
    for name in ("zstandard", "cramjam", "obstore"):
        assert "(the extra `stores`)" in found[name], found[name]
    assert found["application"].startswith("ValidationError: APP: ")
    assert "(the extra `spark`)" in found["application"]


def test_columns_without_orjson_are_read_and_name_it_where_numbers_are_published() -> None:
    """The extras `polars` and `aggregate` have pyarrow alone: what they are for must not need more."""
    found = _found("orjson", "pandas")

    assert found["to_arrow"] == found["to_polars"] == found["arrow"] == "works"
    assert found["publish_batch"].startswith(
        "ExtraMissingError: Publisher.publish_batch needs orjson"
    )


def test_missing_module_that_no_extra_brings_stays_as_it_is() -> None:
    """A defect of an installation must not be shown as an extra to install."""
    with pytest.raises(ModuleNotFoundError, match="'no_such_module'"), needing("a feature"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    error = ModuleNotFoundError("No module named 'pyarrow.new'", name="pyarrow.new")
    assert "needs another version of pyarrow" in str(missing_library("a feature", error))
