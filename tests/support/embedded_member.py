"""One process that joins the embedded server: prints one JSON line a step, leaves when its standard input ends.

Arguments: the data root, then optionally the folder for root's other account.
"""

import json
import sys
from pathlib import Path

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    data_root = Path(sys.argv[1])
    account_root = Path(sys.argv[2]) if len(sys.argv) > 2 else data_root / "not-for-this-test"
    postgres = EmbeddedPostgres(
        durable=False, account_root=account_root, say=lambda sentence: tell(said=sentence)
    )
    try:
        with postgres.join(data_root, timeout_s=30) as membership:
            tell(url=membership.url)
            sys.stdin.read()
    except EmbeddedPostgresError as error:
        tell(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
