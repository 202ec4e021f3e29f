"""Options that name etcd, as `serve` and `doctor` have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.cli.errors import option_values
from broadsheet.cli.options import command_options, option
from broadsheet.runtime.errors import ValidationError

_FILE: Final = click.Path(path_type=Path, exists=True)
_SECRET_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
ETCD_OPTIONS: Final = {
    "etcd.endpoints": "--etcd",
    "etcd.cert_file": "--etcd-cert-file",
    "etcd.username": "--etcd-user",
    "etcd.password": "--etcd-password-file",
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
    etcd_password_file: Path | None = option(
        "File with it, in place of --etcd-password; read once, at the start.",
        type=_SECRET_FILE,
        env="ETCD_PASSWORD_FILE",
    )

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
                password=self._password(),
            )

    def _password(self) -> str | None:
        if self.etcd_password_file is None:
            return self.etcd_password
        if self.etcd_password is not None:
            raise ValidationError("etcd.password", "expected either a password or a file with it")
        # Editors and `echo` end a file with a newline, which no password has.
        return self.etcd_password_file.read_text(encoding="utf-8").removesuffix("\n")
