"""What whoever recovers a log finds in it, as it grows: played from its beginning, apart from what is under test."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from consumer.protocol.recorded_op_pb2 import FSMHints
from consumer.recoverylog.playback import CreateFile, Playback, RemoveFile
from consumer.simulation.broker import Appended
from consumer.simulation.stores import State
from consumer.stores.json_document import decode_documents

_STATE = "/state.json"


class RecoveredView:
    """Follows one recovery log of a `RecordedStore`."""

    def __init__(self, log: str) -> None:
        """Begin with nothing."""
        self._playback = Playback(FSMHints(log=log))
        self._files: dict[int, bytearray] = {}
        self._decoded_fnode = 0
        self.state: Mapping[str, int] = {}
        """As of the last commit that is whole."""

    def feed(self, appended: Appended) -> bool:
        """Play an append; return whether the state is another one."""
        for change in self._playback.feed(appended.begin, appended.content):
            if isinstance(change, CreateFile):
                self._files[change.fnode] = bytearray()
            elif isinstance(change, RemoveFile):
                del self._files[change.fnode]
            else:
                file = self._files[change.fnode]
                file[change.offset : change.offset + len(change.content)] = change.content
        fnode = self._playback.fsm.links.get(_STATE, 0)
        if fnode == self._decoded_fnode or fnode == 0:
            return False
        self._decoded_fnode = fnode
        document, _ = decode_documents(bytes(self._files[fnode]))
        self.state = msgspec.json.decode(document, type=State)
        return True
