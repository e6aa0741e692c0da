"""What stands beside a real cost: the catalogue's figure, the model that answered, the provider's id of the call."""

from alembic import op

revision = "0067"
down_revision = "0066"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE token_usage
            ADD COLUMN IF NOT EXISTS catalog_cost_micros bigint,
            ADD COLUMN IF NOT EXISTS resolved_model_name text,
            ADD COLUMN IF NOT EXISTS generation_id text
        """
    )


def downgrade() -> None:
    op.execute(
        """
        ALTER TABLE token_usage
            DROP COLUMN generation_id,
            DROP COLUMN resolved_model_name,
            DROP COLUMN catalog_cost_micros
        """
    )
