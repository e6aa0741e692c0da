"""Puts the figures of bench/results.json into README.md, between its two marks.

With --check nothing is written. Exit status: 0 the README holds them, 1 it does not or cannot.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Put the figures of bench/results.json into README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when they differ")
    is_check = parser.parse_args(arguments).check
    readme, results = root / "README.md", root / "bench" / "results.json"
    if not results.exists():
        print("There are no figures yet: run `make bench`.", file=sys.stderr)
        return 1
    written = readme.read_text(encoding="utf-8")
    try:
        wanted = with_figures(written, table(json.loads(results.read_text(encoding="utf-8"))))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if written == wanted:
        return 0
    if is_check:
        print(
            "README.md does not hold the figures of bench/results.json: run `make figures`.", file=sys.stderr
        )
        return 1
    readme.write_text(wanted, encoding="utf-8")
    return 0


def with_figures(text: str, figures: str) -> str:
    """The text with these figures between the marks. Raises ValueError unless it has each mark once, in order."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"README.md needs the lines {BEGIN} and {END} once each, in this order.")
    return f"{before}{BEGIN}\n{figures}{END}{after}"


def table(results: Mapping[str, Any]) -> str:
    """A short account of the run."""
    json_turn, streamed_turn, paced = results["json_turn"], results["streamed_turn"], results["paced"]

    def row(title: str, figure: str, form: str = "{:.2f} ms") -> str:
        return f"| {title} | {form.format(json_turn[figure])} | {form.format(streamed_turn[figure])} |\n"

    return (
        "| a turn whose provider answers at once | JSON | streamed |\n"
        "|---|---|---|\n"
        f"{row('processor time of the api', 'cpu_ms')}"
        f"{row('… in bare HTTP calls over loopback', 'cpu_ratio', '{:.0f}')}"
        f"{row('median time from the request to the end of the body', 'latency_ms')}"
        f"{row('… of which the api adds', 'added_latency_ms')}"
        "\n"
        f"{paced['streams']} streams at once, each paced by the provider ({paced['pieces']} pieces): "
        f"{paced['offered_per_s']:.0f} turns a second offered, {paced['reached_per_s']:.0f} reached "
        f"({paced['ratio']:.0%}), {paced['errors']} errors.\n"
        "\n"
        f"Measured by `make bench` on {results['date']}: {results['cores']} cores, one of them the api "
        "process's alone, PostgreSQL, a simulated OpenRouter and the client on the rest; Python "
        f"{results['python']}, answers of {results['pieces']} pieces.\n"
        f"{router_account(results['router']) if 'router' in results else ''}"
    )


def router_account(router: Mapping[str, Any]) -> str:
    """What the tool router adds, by the run that measured it."""
    return (
        "\n"
        f"A tool router that takes {router['decision_ms']} ms adds {router['added_ms']:.0f} ms to a turn (median of "
        f"{router['pairs']} pairs, on and off by turns). One that answers at once takes "
        f"{router['cpu_added_ms']:.2f} ms of the api's processor time more ({router['cpu_added_ratio']:.0f} bare HTTP "
        f"calls): {router['cpu_on_ms']:.2f} ms a turn, and {router['cpu_off_ms']:.2f} ms without it.\n"
        "\n"
        f"Measured by `make bench-router` on {router['date']}, likewise: {router['cores']} cores, Python "
        f"{router['python']}, JSON turns with {router['menu_before']} tools, {router['menu_after']} once narrowed.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
