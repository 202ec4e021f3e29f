"""Those who sign tokens with private keys, and publish the public ones."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    generate_private_key as generate_rsa_key,
)
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ALGORITHMS = ("RS256", "ES256", "EdDSA")
SECRET = urlsafe_b64encode(b"a secret that everybody can read").decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """A private key with an id."""

    key_id: str
    algorithm: str
    key: Any
    """Of `cryptography`; the classes have no common base."""

    def token(self, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a signed token that permits to LIST for an hour, unless the claims say otherwise; None leaves out."""
        payload = {"cap": 2, "exp": datetime.now(UTC) + timedelta(hours=1), **claims}
        return jwt.encode(
            {name: value for name, value in payload.items() if value is not None},
            self.key,
            algorithm=self.algorithm,
            headers={"kid": self.key_id, **(header or {})},
        )

    def public(self, **changes: Any) -> dict[str, Any]:
        """Return the public key as a JWK; `Any`, as JSON has it."""
        kind: Any = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        encoded = json.loads(kind[self.algorithm].to_jwk(self.key.public_key()))
        # PyJWT writes `verify` for its own purposes; other signers leave it out.
        encoded.pop("key_ops", None)
        return {**encoded, "kid": self.key_id, "use": "sig", **changes}


def signer(algorithm: str, key_id: str = "key-1") -> TokenSigner:
    """Return the signer with an id, the same each time."""
    return TokenSigner(key_id, algorithm, _key(algorithm, key_id))


def key_set(*keys: TokenSigner | dict[str, Any]) -> bytes:
    """Return a JSON Web Key Set."""
    return json.dumps(
        {"keys": [k.public() if isinstance(k, TokenSigner) else k for k in keys]}
    ).encode()


def unusable_keys() -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield keys that must not verify tokens, with what is wrong."""
    rsa, curve = signer("RS256", "bad"), signer("ES256", "bad")
    private = json.loads(ECAlgorithm.to_jwk(curve.key))
    other_curve: EllipticCurvePrivateKey = generate_private_key(SECP384R1())
    weak: RSAPrivateKey = generate_rsa_key(65537, 1024)  # noqa: S505 - what must be refused
    yield "secret", {"kty": "oct", "kid": "bad", "k": SECRET}
    yield "secret", {**private, "kid": "bad"}
    yield "2048 bits", TokenSigner("bad", "RS256", weak).public()
    yield "P-256", TokenSigner("bad", "ES256", other_curve).public()
    yield "for signatures", rsa.public(use="enc")
    yield "for signatures", rsa.public(alg="RS512")
    yield "for signatures", rsa.public(alg="HS256")
    yield "for signatures", rsa.public(key_ops=["encrypt"])
    yield "256 characters", rsa.public(kid="k" * 257)
    yield "JSON Web Key", rsa.public(n="!!!")
    yield "JSON Web Key", rsa.public(kid=7)
    yield "JSON Web Key", curve.public(y=curve.public()["x"])
    yield "JSON Web Key", {"kid": "bad"}


@cache
def _key(algorithm: str, key_id: str) -> Any:
    del key_id  # each id has a key of its own
    if algorithm == "RS256":
        return generate_rsa_key(65537, 2048)
    return (
        generate_private_key(SECP256R1()) if algorithm == "ES256" else Ed25519PrivateKey.generate()
    )
