"""The parts of the token counts: cached input and reasoning output. They are in the counts, never added to them."""

from alembic import op

revision = "py0001"
down_revision = "0067"


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE token_usage
            ADD COLUMN IF NOT EXISTS cached_input_tokens integer,
            ADD COLUMN IF NOT EXISTS reasoning_tokens integer
        """
    )


def downgrade() -> None:
    op.execute("ALTER TABLE token_usage DROP COLUMN reasoning_tokens, DROP COLUMN cached_input_tokens")
