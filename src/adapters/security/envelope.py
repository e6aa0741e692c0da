"""temp"""
import base64, hashlib, os
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from application.ports.credential_vault import CannotOpenCredential, CredentialVault, SealedKey
from domain.secret import Secret
class EnvelopeVault(CredentialVault):
    def __init__(self, current: Secret, previous: Secret | None) -> None:
        self._keys=[hashlib.scrypt(s.reveal().encode(), salt=b"brabo-credentials-salt", n=16384, r=8, p=1, dklen=32) for s in (current, previous) if s]
    def open(self, sealed: SealedKey) -> Secret:
        b=base64.b64decode
        for k in self._keys:
            try:
                dek=AESGCM(k).decrypt(b(sealed.dek_iv), b(sealed.wrapped_dek)+b(sealed.dek_auth_tag), None)
                return Secret(AESGCM(dek).decrypt(b(sealed.api_key_iv), b(sealed.encrypted_api_key)+b(sealed.api_key_auth_tag), None).decode())
            except InvalidTag:
                continue
        raise CannotOpenCredential
    def seal(self, api_key: Secret) -> SealedKey: raise CannotOpenCredential
