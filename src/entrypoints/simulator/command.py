"""`brabo simulate`: runs the simulated OpenRouter until it is told to stop."""

import argparse
import asyncio
import signal
import sys

import uvloop

from entrypoints.simulator.faults import UnknownFaultError, parse_faults
from entrypoints.simulator.simulator import Simulator


def add_simulate_command(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `simulate` to a parser's commands; its `run` default is this module's `run`."""
    parser = subparsers.add_parser("simulate", help="run a simulated OpenRouter on this machine")
    _add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM. Returns 0; 1 when the address is taken; 2 for an unknown fault."""
    faults = ",".join(args.fault)
    try:
        parse_faults(faults)
    except UnknownFaultError as error:
        print(f"brabo simulate: {error}", file=sys.stderr)
        return 2
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                run_simulator(
                    args.host,
                    args.port,
                    faults=faults,
                    first_token_ms=args.first_token_ms,
                    between_ms=args.between_ms,
                    generation_delay_ms=args.generation_delay_s * 1000,
                )
            )
    except OSError as error:
        print(
            f"brabo simulate: cannot listen on {args.host}:{args.port}: {error.strerror or error}",
            file=sys.stderr,
        )
        return 1
    return 0


async def run_simulator(
    host: str,
    port: int,
    *,
    faults: str = "",
    first_token_ms: float = 0,
    between_ms: float = 0,
    generation_delay_ms: float = 25_000,
) -> None:
    """Serves until SIGINT or SIGTERM, and prints where. Arguments as of `Simulator.start`; OSError: port taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    async with Simulator.start(
        host=host,
        port=port,
        faults=faults,
        first_token_ms=first_token_ms,
        between_ms=between_ms,
        generation_delay_ms=generation_delay_ms,
    ) as simulator:
        print(_greeting(simulator), flush=True)
        await stop.wait()
    bill = simulator.bill()
    print(f"Stopped. {bill['count']} calls on the bill, {bill['total']} USD.", flush=True)


def main() -> int:
    """`python -m entrypoints.simulator`."""
    parser = argparse.ArgumentParser(
        prog="python -m entrypoints.simulator", description="A simulated OpenRouter."
    )
    _add_options(parser)
    return run(parser.parse_args())


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=8787, help="port, 0 for a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[;PARAM=VALUE…]",
        help="a fault for every call it applies to; repeatable; GET /_faults lists them",
    )
    parser.add_argument(
        "--first-token-ms", type=_duration, default=0, help="pause before the first token (default: 0)"
    )
    parser.add_argument("--between-ms", type=_duration, default=0, help="pause between tokens (default: 0)")
    parser.add_argument(
        "--generation-delay-s",
        type=_duration,
        default=25,
        help="how long GET /generation answers 404 after a call has ended (default: 25)",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is no port: from 0 to 65535")
    return port


def _duration(text: str) -> float:
    duration = float(text)
    if not 0 <= duration < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no duration: 0 or more")
    return duration


def _greeting(simulator: Simulator) -> str:
    return (
        f"Simulated OpenRouter on {simulator.control_url}\n"
        f"  point an api at it     OPENROUTER_API_BASE={simulator.base_url}\n"
        f"  any key is good        sk-or-anything (a key that ends in -revoked is refused)\n"
        f"  what was charged       curl {simulator.control_url}/_bill\n"
        f"  what arrived           curl {simulator.control_url}/_requests\n"
        f"  what can go wrong      curl {simulator.control_url}/_faults\n"
        f"  script the next call   curl {simulator.control_url}/_script "
        f'-d \'{{"reply": {{"text": "Olá"}}, "fault": "delay-first-token;ms=500"}}\'\n'
        "Ctrl-C stops it."
    )
