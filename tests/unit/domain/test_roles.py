"""Who may do what another may."""

from domain.roles import Role


def test_each_role_covers_itself_and_those_below() -> None:
    order = [Role.OWNER, Role.MAINTAINER, Role.DEVELOPER, Role.VIEWER]

    assert [[role.covers(needed) for needed in order] for role in order] == [
        [True, True, True, True],
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
    ]
