"""Policy P3: it only restricts."""

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from domain.menu import RESERVED_OPTION, narrowed_menu
from tests.support.steps import ATool, tools

NAMES = st.sampled_from(["ler", "editar", "rodar", "procurar", "", 'uma "aspa"', "linha\nnova"])
CATALOGUES = st.lists(st.builds(ATool, NAMES, st.text(max_size=3)), min_size=1, max_size=12)
CHOICES = NAMES | st.just(RESERVED_OPTION) | st.text(max_size=5)
PREVIOUS = st.none() | NAMES | st.text(max_size=5)


def places(menu: Sequence[object], catalogue: Sequence[object]) -> list[int]:
    """Where in the catalogue the menu's very objects stand; a copy of one has no place."""
    at = {id(tool): place for place, tool in enumerate(catalogue)}
    return [at[id(tool)] for tool in menu]


@given(CATALOGUES, CHOICES, PREVIOUS)
def test_a_menu_is_some_of_the_catalogues_own_objects_in_its_order(
    catalogue: list[ATool], choice: str, previous: str | None
) -> None:
    found = places(narrowed_menu(catalogue, choice, previous), catalogue)

    assert found
    assert found == sorted(set(found))


@given(CATALOGUES, CHOICES, PREVIOUS)
def test_narrowing_twice_is_narrowing_once(catalogue: list[ATool], choice: str, previous: str | None) -> None:
    menu = narrowed_menu(catalogue, choice, previous)

    assert places(narrowed_menu(menu, choice, previous), menu) == list(range(len(menu)))


@given(st.data())
def test_it_holds_the_choice_and_the_previous_tool_and_no_other(data: st.DataObject) -> None:
    catalogue = data.draw(CATALOGUES)
    names = [tool.name for tool in catalogue]
    choice, previous = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))

    menu = narrowed_menu(catalogue, choice, previous)

    assert places(menu, catalogue) == [at for at, name in enumerate(names) if name in {choice, previous}]


@given(CATALOGUES, CHOICES)
def test_without_a_previous_tool_it_is_the_catalogue(catalogue: list[ATool], choice: str) -> None:
    assert narrowed_menu(catalogue, choice, None) is catalogue


@given(CATALOGUES, CHOICES, st.text(max_size=5))
def test_with_a_previous_tool_that_is_not_on_it_it_is_the_catalogue(
    catalogue: list[ATool], choice: str, previous: str
) -> None:
    assume(all(tool.name != previous for tool in catalogue))

    assert narrowed_menu(catalogue, choice, previous) is catalogue


@given(CATALOGUES, PREVIOUS)
def test_for_the_reserved_option_it_is_the_catalogue(catalogue: list[ATool], previous: str | None) -> None:
    assert narrowed_menu(catalogue, RESERVED_OPTION, previous) is catalogue


def test_the_reserved_option_is_never_a_tool() -> None:
    catalogue = tools("ler", RESERVED_OPTION, "rodar")

    assert narrowed_menu(catalogue, RESERVED_OPTION, "ler") is catalogue


@given(CATALOGUES, st.text(max_size=5), PREVIOUS)
def test_for_a_choice_that_is_not_on_it_it_is_the_catalogue(
    catalogue: list[ATool], choice: str, previous: str | None
) -> None:
    assume(all(tool.name != choice for tool in catalogue))

    assert narrowed_menu(catalogue, choice, previous) is catalogue


def test_the_choice_may_be_the_previous_tool() -> None:
    catalogue = tools("ler", "editar", "rodar")

    assert places(narrowed_menu(catalogue, "editar", "editar"), catalogue) == [1]


def test_both_tools_of_one_name_stay() -> None:
    catalogue = tools("ler", "rodar", "ler", "editar")

    assert places(narrowed_menu(catalogue, "editar", "ler"), catalogue) == [0, 2, 3]
