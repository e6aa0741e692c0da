"""Known counts, and that neither loading nor counting surprises anybody."""

import asyncio
import subprocess
import sys
import time

import pytest

from adapters.tokenizer import O200kTokenEstimator

LARGEST_GAP_S = 0.1
TICK_S = 0.005

# Two other implementations of the vocabulary counted each of them alike.
KNOWN = {
    "hello world": 2,
    "": 0,
    " ": 1,
    "\n\n\n": 1,
    "Não sei se já é amanhã.": 7,
    "def read_file(path: str) -> bytes:\n    return open(path, 'rb').read()\n": 20,
    '{"path": "src/domain/usage.py", "line": 42}': 16,
    "1234567890": 4,
    "漢字かなカナ": 5,
    "👩‍👩‍👧 🇧🇷": 12,
    "<|endoftext|>": 7,
    "HTTPServerError don't I'LL": 6,
    "a" * 1000: 125,
}


@pytest.fixture(scope="module")
def estimator() -> O200kTokenEstimator:
    loaded = O200kTokenEstimator()
    loaded.load()
    return loaded


@pytest.mark.parametrize("text", KNOWN, ids=lambda text: repr(text[:20]))
async def test_counts_as_the_vocabulary_has_it(estimator: O200kTokenEstimator, text: str) -> None:
    assert await estimator.count([text]) == KNOWN[text]


async def test_a_lone_surrogate_counts_as_the_mark_in_its_place(estimator: O200kTokenEstimator) -> None:
    assert await estimator.count(["x\ud800y"]) == await estimator.count(["x?y"])


async def test_loads_by_itself_and_once() -> None:
    """In a process of its own, since this one has the vocabulary already."""
    script = """
import asyncio, sys, time
from adapters.tokenizer import O200kTokenEstimator
estimator = O200kTokenEstimator()
assert "toktok" not in sys.modules
async def main():
    assert await estimator.count(["x" * 300_000]) == 100_000 and "toktok" not in sys.modules
    assert await asyncio.gather(*(estimator.count(["hello world"]) for _ in range(8))) == [2] * 8
    rss_kb = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
    print("resident at most", rss_kb // 1024, "MB")
    assert rss_kb < 160 * 1024
    started = time.perf_counter()
    estimator.load()
    assert time.perf_counter() - started < 0.1
asyncio.run(main())
"""
    if sys.platform != "linux":
        script = "\n".join(line for line in script.splitlines() if "rss_kb" not in line)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "text",
    [
        "O agente lê o arquivo e corrige a função. " * 5800,
        "-" * (256 * 1024),
        "qzxjkvbw" * (32 * 1024),
        "é" * (20 * 1024 * 1024),
    ],
    ids=["prose", "one long mark", "one long word", "20 million characters"],
)
async def test_the_loop_goes_on_while_a_long_text_is_counted(
    estimator: O200kTokenEstimator, text: str
) -> None:
    gaps_s: list[float] = []

    async def tick() -> None:
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.perf_counter()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(2 * TICK_S)
    started_s = time.perf_counter()
    for _ in range(3):
        await estimator.count([text])
    took_s = time.perf_counter() - started_s
    await asyncio.sleep(2 * TICK_S)
    ticking.cancel()

    print(
        f"{len(gaps_s)} ticks, largest gap {max(gaps_s) * 1000:.0f} ms in {took_s * 1000:.0f} ms of counting"
    )
    assert max(gaps_s) < LARGEST_GAP_S
