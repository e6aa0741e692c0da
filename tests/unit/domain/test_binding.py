from uuid import UUID

from domain.binding import Bindings, BindingScope, BoundModel
from domain.provider import Provider
from domain.usage import Prices


def bound(
    scope: BindingScope, name: str | None = None, *, available: bool = True, tools: bool = True
) -> BoundModel:
    return BoundModel(
        scope=scope,
        model_id=UUID(int=1),
        provider=Provider.OPENROUTER,
        name=name or scope.value,
        prices=Prices(0, 0),
        is_available=available,
        supports_tool_calling=tools,
    )


def test_the_most_specific_scope_wins_in_any_order() -> None:
    every = [bound(scope) for scope in reversed(BindingScope)]

    for expected in ("session", "agent", "area", "project", "workspace"):
        winner = Bindings(every).resolve(with_tools=True)
        assert winner is not None
        assert winner.name == expected
        every = [one for one in every if one.name != expected]
    assert Bindings(every).resolve(with_tools=True) is None


def test_an_unavailable_model_is_skipped_at_every_level() -> None:
    for scope in BindingScope:
        bindings = Bindings([bound(scope, "gone", available=False)])
        assert bindings.resolve(with_tools=False) is None
        gone = bindings.most_specific_gone()
        assert gone is not None
        assert gone.scope is scope


def test_a_model_without_tool_calling_is_skipped_only_for_a_turn_with_tools() -> None:
    bindings = Bindings(
        [bound(BindingScope.SESSION, "plain", tools=False), bound(BindingScope.WORKSPACE, "able")]
    )

    with_tools, without = bindings.resolve(with_tools=True), bindings.resolve(with_tools=False)

    assert with_tools is not None
    assert with_tools.name == "able"
    assert without is not None
    assert without.name == "plain"


def test_landing_on_the_workspace_takes_the_model_of_criativo() -> None:
    workspace, creative = bound(BindingScope.WORKSPACE), bound(BindingScope.AGENT, "creative")

    winner = Bindings([workspace], creative).resolve(with_tools=True)

    assert winner is creative
    assert winner is not None
    assert winner.scope is BindingScope.AGENT


def test_criativo_must_pass_the_same_checks() -> None:
    workspace = bound(BindingScope.WORKSPACE)

    assert (
        Bindings([workspace], bound(BindingScope.AGENT, available=False)).resolve(with_tools=True)
        is workspace
    )
    assert Bindings([workspace], bound(BindingScope.AGENT, tools=False)).resolve(with_tools=True) is workspace


def test_criativo_is_asked_only_where_the_workspace_would_answer() -> None:
    creative = bound(BindingScope.AGENT, "creative")
    project = bound(BindingScope.PROJECT)

    assert Bindings([project], creative).resolve(with_tools=True) is project
    assert Bindings([], creative).resolve(with_tools=True) is None
