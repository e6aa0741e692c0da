from domain.failure import FailureCode
from domain.secret import Secret


def test_every_code_has_an_origin() -> None:
    assert {code.origin.value for code in FailureCode} == {"infra", "modelo", "politica", "codigo"}


def test_a_secret_is_not_seen() -> None:
    secret = Secret("sk-or-v1-abc")

    assert "sk-or" not in f"{secret} {secret!r} {[secret]} {secret:}"
    assert secret.reveal() == "sk-or-v1-abc"
