"""The tool router's criterion was lowered with the figures at hand: no text says that the first one was met.

A sentence that denies it is found too: say what happened instead.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_OURS = {".git", ".venv", "build", "dist", "node_modules"}

NINETY = re.compile(
    r"\b(?:90(?:[.,]0+)?(?:\s|&nbsp;|-)*(?:%|per\s?cent\b|por\s?cento\b)|ninety[\s-]+per\s?cent\b|noventa\s+por\s?cento\b)",
    re.IGNORECASE,
)
MET = re.compile(
    r"\b(?:pass(?:e[ds]|ing)?|meets?|met|meeting|reach(?:e[ds]|ing)?|clear(?:ed|s|ing)|exceed(?:ed|s|ing)?|beats?|beaten|"
    r"surpass(?:e[ds]|ing)?|satisf(?:y|ies|ied|ying)|achiev(?:e[ds]?|ing)|above|hits?|"
    r"pass(?:a|ou|am|aram|ar|ando)|ating(?:e|iu|em|iram|ir|indo)|alcan[cç](?:a|ou|am|aram|ar|ando)|"
    r"super(?:a|ou|am|aram|ar|ando)|cumpr(?:e|iu|em|iram|ir|indo)|ultrapass(?:a|ou|am|aram|ar|ando)|"
    r"bat(?:e|eu|em|eram|er)|satisf(?:az|ez|azem|izeram)|acima|aprovad[oa]s?)\b",
    re.IGNORECASE,
)
SUBJECT = re.compile(
    r"\b(?:adopt(?:ion|ed|ing|s)?|ado[cç][aã]o|adotad[oa]s?|criteri(?:on|a)|crit[eé]rios?|routers?|roteador(?:es)?|jev|"
    r"validation|valida[cç][aã]o|coverage|cobertura)\b",
    re.IGNORECASE,
)
NEAR_CHARACTERS = 150


def claims(text: str) -> Iterator[str]:
    """The sentences that say so, over ends of lines and marks of comments."""
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        for ninety in NINETY.finditer(sentence):
            near = sentence[max(0, ninety.start() - NEAR_CHARACTERS) : ninety.end() + NEAR_CHARACTERS]
            if MET.search(near) and SUBJECT.search(near):
                yield " ".join(sentence.split())
                break


def claims_below(folder: Path) -> list[str]:
    """Claims in all text files, by their paths."""
    return [
        f"{path.relative_to(folder)}: {claim}"
        for path in text_files(folder)
        for claim in claims(path.read_text(encoding="utf-8"))
    ]


def text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in NOT_OURS and not path.name.endswith(("cache", "cache__", ".egg-info")):
                yield from text_files(path)
        elif is_text(path):
            yield path


def is_text(path: Path) -> bool:
    try:
        return path.is_file() and "\0" not in path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False


def test_no_text_says_so() -> None:
    read = {str(path.relative_to(ROOT)) for path in text_files(ROOT)}
    assert {
        "README.md",
        "CHANGELOG.md",
        "deploy/nginx.conf",
        "src/domain/menu.py",
        "tests/unit/test_claims.py",
    } <= read
    assert any(name.startswith("docs/adr/") for name in read)

    assert claims_below(ROOT) == []


# With the number left out, so that this file says none of them.
SAID = [
    "The adoption passed the {} criterion.",
    "Adoption passed {}.",
    "In validation the router reached {} and was adopted.",
    "With {} met, the policy was adopted.",
    "It was adopted because it cleared the {} bar.",
    "The criterion of {} was met by a wide margin.",
    "The criterion of {} was exceeded",
    "coverage of 91 %, above the {} that the criterion asks for",
    "# The router was adopted, since its menus\n    # passed the {} that was asked for.",
    "| adoption | passed {} |",
    "A adoção passou dos {}.",
    "A adoção passou nos {} do critério.",
    "O roteador foi adotado porque atingiu os {}.",
    "O critério de {} foi cumprido e superado: a cobertura superou o pedido.",
    "Com cobertura acima de {}, o Jev foi adotado.",
    "A adocao alcancou {}",
]

FORMS = [
    "90 %",
    "90%",
    "90\u00a0%",
    "90&nbsp;%",
    "90.0 %",
    "90 percent",
    "90 per cent",
    "90-percent",
    "ninety percent",
    "90 por cento",
    "noventa por cento",
]


@pytest.mark.parametrize("sentence", SAID)
def test_a_planted_claim_is_found(tmp_path: Path, sentence: str) -> None:
    (tmp_path / "docs").mkdir()
    page = f"Before it.\n\n{sentence.format(FORMS[0])}\n\nAfter it.\n"
    (tmp_path / "docs" / "page.md").write_text(page, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")

    [found] = claims_below(tmp_path)

    assert found.startswith("docs/page.md: ")


@pytest.mark.parametrize("form", FORMS)
def test_however_the_number_is_written(form: str) -> None:
    assert len(list(claims(SAID[0].format(form)))) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "The owner lowered the criterion from {} to 80 %, with these numbers at hand.",
        "Coverage of the menu 91 % (85.1 to 94), top-2 {}; repeating the previous tool alone 82 %.",
        "Once a budget has passed {} an event says so.",
        "The adoption of a database has passed. It is {} of a hundred.",
        "A critérios novos: o dono baixou de {} para 80 %.",
        "The adoption passed 190 % of nothing.",
    ],
)
def test_what_may_be_said_is_not_found(sentence: str) -> None:
    assert list(claims(sentence.format(FORMS[0]))) == []
