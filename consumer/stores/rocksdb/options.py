"""How a store's RocksDB is set up: whatever else is tuned, its files may only be added, appended to and removed."""

from __future__ import annotations

from rocksdict import DBRecoveryMode, Options

MANIFEST_BYTES_MAX = 128 << 10
"""The manifest begins anew after so much, so that the recovery log need not keep the changes of old times."""


def new_options(write_buffer_bytes: int) -> Options:
    """Return the options of the database and of each column family, to be tuned and then fixed (`fix_options`).

    Args:
        write_buffer_bytes: Size of the memory table of each family: also what opening replays from the log, at most.
    """
    options = Options(raw_mode=True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_total_wal_size(4 * write_buffer_bytes)
    options.set_target_file_size_base(write_buffer_bytes)
    options.set_max_bytes_for_level_base(8 * write_buffer_bytes)
    options.set_max_background_jobs(2)
    return options


def fix_options(options: Options) -> None:
    """Set what the recording and the commit rest on."""
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A commit that is cut off at the end of the write-ahead log did not happen; nothing behind it is believed.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_recycle_log_file_num(0)
    options.set_allow_mmap_writes(False)
    options.set_use_direct_io_for_flush_and_compaction(False)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    # Text logs of its own doings: local, not recorded, one small file.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
