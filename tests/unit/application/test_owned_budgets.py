"""Who may read and set budgets and ceilings, and what is not there."""

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.budgets import InMemoryAgentAreas, InMemoryBudgets
from adapters.in_memory.ledger import AreaEntry, InMemoryLedger
from adapters.in_memory.users import InMemoryUsers
from application.agent_areas import LimitAgentArea, ReadAgentAreas
from application.not_there import NotThere
from application.ports.agent_areas import AgentArea
from application.ports.budgets import BudgetOwner, OwnedBudget
from application.ports.users import UnknownUser, User
from application.read_budget import ReadBudget
from application.require_role import NotAllowed
from application.set_budget import SetBudget
from domain.budget import BudgetPolicy
from domain.roles import Role


class Office:
    """A project with a session and an area, and a user who is nobody in it."""

    def __init__(self) -> None:
        self.ledger = InMemoryLedger()
        self.workspace_id = self.ledger.add_workspace(uuid4())
        self.project_id = self.ledger.add_project(self.workspace_id)
        self.session_id = self.ledger.add_session(self.project_id)
        self.ledger.areas[self.project_id, "qa"] = AreaEntry(None, 5)
        self.ana = User(uuid4(), "ana@example.com")
        self.users = InMemoryUsers(
            users={self.ana.id: self.ana}, project_workspaces={self.project_id: self.workspace_id}
        )
        budgets, areas = InMemoryBudgets(self.ledger), InMemoryAgentAreas(self.ledger)
        self.read = ReadBudget(self.users, budgets)
        self.set = SetBudget(self.users, budgets)
        self.areas = ReadAgentAreas(self.users, areas)
        self.limit_area = LimitAgentArea(self.users, areas)

    def let(self, role: Role) -> None:
        self.users.project_roles[self.ana.id, self.project_id] = role

    def of_project(self, project_id: UUID | None = None) -> list[Callable[[], Awaitable[object]]]:
        """Everything that is for a project's maintainers."""
        ana, project = self.ana.id, project_id or self.project_id
        return [
            lambda: self.set(ana, BudgetOwner(project), limit_micros=5, policy=None),
            lambda: self.read(ana, BudgetOwner(project)),
            lambda: self.areas(ana, project),
            lambda: self.limit_area(ana, project, "qa", limit_micros=5),
        ]

    def of_session(self) -> list[Callable[[], Awaitable[object]]]:
        """Everything that is for a session's developers."""
        owner = BudgetOwner(self.project_id, self.session_id)
        return [
            lambda: self.set(self.ana.id, owner, limit_micros=5, policy=None),
            lambda: self.read(self.ana.id, owner),
        ]


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.mark.parametrize("role", [Role.OWNER, Role.MAINTAINER])
async def test_a_maintainer_may_do_everything(office: Office, role: Role) -> None:
    office.let(role)

    for use in (*office.of_project(), *office.of_session()):
        await use()

    area = office.ledger.areas[office.project_id, "qa"]
    assert (area.limit_micros, area.spent_micros) == (5, 5)
    assert len(office.ledger.budgets) == 2


async def test_a_developer_may_do_so_with_a_session_only(office: Office) -> None:
    office.let(Role.DEVELOPER)

    for use in office.of_session():
        await use()
    for use in office.of_project():
        with pytest.raises(NotAllowed, match="`maintainer` in the project"):
            await use()

    area = office.ledger.areas[office.project_id, "qa"]
    assert (area.limit_micros, area.spent_micros) == (None, 5)
    assert len(office.ledger.budgets) == 1


async def test_a_viewer_and_a_stranger_may_nothing(office: Office) -> None:
    uses = (*office.of_project(), *office.of_session())
    for use in uses:
        with pytest.raises(NotAllowed):
            await use()
    office.let(Role.VIEWER)
    for use in uses:
        with pytest.raises(NotAllowed):
            await use()

    assert office.ledger.budgets == {}


async def test_an_owner_of_the_workspace_who_only_views_the_project_may_nothing(office: Office) -> None:
    office.users.workspace_roles[office.ana.id, office.workspace_id] = Role.OWNER
    for use in office.of_project():
        await use()
    office.let(Role.VIEWER)

    for use in (*office.of_project(), *office.of_session()):
        with pytest.raises(NotAllowed):
            await use()


async def test_a_project_that_is_not_there_is_told_from_none_that_one_has_no_part_in(office: Office) -> None:
    for there, away in zip(office.of_project(), office.of_project(uuid4()), strict=True):
        told = set()
        for use in (there, away):
            with pytest.raises(NotAllowed) as refused:
                await use()
            told.add(str(refused.value))
        assert len(told) == 1


async def test_who_is_not_there_any_more_is_unknown(office: Office) -> None:
    office.let(Role.OWNER)
    office.users.users.clear()

    for use in (*office.of_project(), *office.of_session()):
        with pytest.raises(UnknownUser):
            await use()


async def test_what_is_not_there_is_said_to_who_may_know(office: Office) -> None:
    office.let(Role.MAINTAINER)
    elsewhere = office.ledger.add_session(office.ledger.add_project(office.workspace_id))
    ana = office.ana.id

    for owner in (BudgetOwner(office.project_id), BudgetOwner(office.project_id, office.session_id)):
        with pytest.raises(NotThere, match=r"has no budget.* PUT makes one"):
            await office.read(ana, owner)
    told = set()
    for session_id in (uuid4(), elsewhere):
        owner = BudgetOwner(office.project_id, session_id)
        with pytest.raises(NotThere, match="no such session") as unread:
            await office.read(ana, owner)
        with pytest.raises(NotThere, match="no such session") as unset:
            await office.set(ana, owner, limit_micros=1, policy=None)
        told |= {str(unread.value), str(unset.value)}
    with pytest.raises(NotThere, match="no such area"):
        await office.limit_area(ana, office.project_id, "dev", limit_micros=1)

    assert len(told) == 1
    assert office.ledger.budgets == {}


async def test_a_project_that_goes_in_between_is_as_unknown_as_any(office: Office) -> None:
    office.let(Role.MAINTAINER)
    del office.ledger.project_workspaces[office.project_id]

    for use in office.of_project()[:2]:
        with pytest.raises(NotAllowed):
            await use()


async def test_what_is_set_is_what_is_read(office: Office) -> None:
    office.let(Role.MAINTAINER)
    owner = BudgetOwner(office.project_id)

    made = await office.set(office.ana.id, owner, limit_micros=7, policy=BudgetPolicy.ALLOW)
    area = await office.limit_area(office.ana.id, office.project_id, "qa", limit_micros=9)

    assert made == await office.read(office.ana.id, owner) == OwnedBudget(7, 0, BudgetPolicy.ALLOW, 0)
    assert list(await office.areas(office.ana.id, office.project_id)) == [area] == [AgentArea("qa", 9, 5)]
