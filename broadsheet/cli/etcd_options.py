"""Options that name etcd, as `serve` and `doctor` have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.cli.errors import option_values
from broadsheet.cli.options import command_options, option

_FILE: Final = click.Path(path_type=Path, exists=True)
ETCD_OPTIONS: Final = {
    "etcd.endpoints": "--etcd",
    "etcd.cert_file": "--etcd-cert-file",
    "etcd.username": "--etcd-user",
}
"""By the field of `EtcdConfig` that an option sets."""


@command_options
class EtcdCredentials:
    """Files and names with which etcd lets us in."""

    etcd_ca_file: Path | None = option("Authority of etcd's certificates.", type=_FILE)
    etcd_cert_file: Path | None = option("Our certificate for etcd.", type=_FILE)
    etcd_key_file: Path | None = option("Its key.", type=_FILE)
    etcd_user: str | None = option("User of etcd, where it asks for one.", env="ETCD_USER")
    etcd_password: str | None = option("The user's password.", env="ETCD_PASSWORD", is_secret=True)

    def config(self, endpoints: str) -> EtcdConfig:
        """Return the configuration of a client of endpoints, which are separated by commas.

        Raises:
            WrongValueError: an endpoint is malformed, or options lack each other.
        """
        with option_values(ETCD_OPTIONS):
            return EtcdConfig(
                endpoints=tuple(endpoints.split(",")),
                ca_file=self.etcd_ca_file,
                cert_file=self.etcd_cert_file,
                key_file=self.etcd_key_file,
                username=self.etcd_user,
                password=self.etcd_password,
            )
