"""Commands: calls whose effect is a message of the shard, consumed once, committed, and answered.

`JsonAnswers`, `SqliteAnswers`, `SqlAnswers` and `RocksDbAnswers` keep the answers in the stores of their names.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.commands.answers import Answers as Answers, KeptAnswer as KeptAnswer
    from broadsheet.consumer.commands.commands import Commands as Commands
    from broadsheet.consumer.commands.errors import (
        CommandAnswerForgottenError as CommandAnswerForgottenError,
        CommandIdReusedError as CommandIdReusedError,
        CommandRefusedError as CommandRefusedError,
    )
    from broadsheet.consumer.commands.json_answers import JsonAnswers as JsonAnswers
    from broadsheet.consumer.commands.rocksdb_answers import RocksDbAnswers as RocksDbAnswers
    from broadsheet.consumer.commands.sql_answers import SqlAnswers as SqlAnswers
    from broadsheet.consumer.commands.sqlite_answers import SqliteAnswers as SqliteAnswers

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
