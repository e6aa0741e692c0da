"""What the provider says it charged, exactly; null where it did not say. `cost_micros` is the same, rounded."""

from alembic import op

revision = "py0003"
down_revision = "py0002"


def upgrade() -> None:
    op.execute("ALTER TABLE token_usage ADD COLUMN IF NOT EXISTS charged_usd numeric")


def downgrade() -> None:
    op.execute("ALTER TABLE token_usage DROP COLUMN charged_usd")
