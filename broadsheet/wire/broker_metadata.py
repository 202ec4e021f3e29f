"""Initial metadata of a broker's answer to List.

broker → client   `broadsheet-version`   of the package
                  `broadsheet-time`      its clock as it begins to answer, nanoseconds since 1970, decimal
"""

from __future__ import annotations

VERSION = "broadsheet-version"
WALL_TIME = "broadsheet-time"
