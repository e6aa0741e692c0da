"""The record of who switched a workspace's tool router, when, from what and to what.

No foreign keys: it outlives what it tells of, and never keeps the existing program from deleting a user or workspace.
"""

from alembic import op

revision = "py0002"
down_revision = "py0001"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS brabo_api_router_switches (
            id uuid NOT NULL DEFAULT gen_random_uuid(),
            workspace_id uuid NOT NULL,
            by_user_id uuid,
            was_enabled boolean NOT NULL,
            is_enabled boolean NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT pk_brabo_api_router_switches PRIMARY KEY (id)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX IF NOT EXISTS ix_brabo_api_router_switches_workspace_id_created_at
            ON brabo_api_router_switches (workspace_id, created_at)
        """
    )


def downgrade() -> None:
    op.execute("DROP TABLE brabo_api_router_switches")
