"""Who may do what in a workspace."""

from enum import StrEnum


class Role(StrEnum):
    """A member's role: each may do all that those after it may."""

    OWNER = "owner"
    MAINTAINER = "maintainer"
    DEVELOPER = "developer"
    VIEWER = "viewer"

    def covers(self, needed: "Role") -> bool:
        """Whether who has this role may do what the needed one may."""
        order = list(Role)
        return order.index(self) <= order.index(needed)
