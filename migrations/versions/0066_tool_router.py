"""The router's switch per workspace, and the mark of prices that follow from a cost.

Constant defaults: the server keeps them in its catalogue and rewrites no row.
"""

from alembic import op

revision = "0066"
down_revision = "0065"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE token_usage ADD COLUMN IF NOT EXISTS price_implicit boolean NOT NULL DEFAULT false"
    )
    op.execute(
        "ALTER TABLE workspaces ADD COLUMN IF NOT EXISTS tool_router_enabled boolean NOT NULL DEFAULT true"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE workspaces DROP COLUMN tool_router_enabled")
    op.execute("ALTER TABLE token_usage DROP COLUMN price_implicit")
