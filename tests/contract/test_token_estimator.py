"""What every adapter of the port TokenEstimator does."""

import asyncio

import pytest

from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.tokenizer import O200kTokenEstimator
from application.ports.token_estimator import TokenEstimator

KB = 1024
PROSE = "O agente lê o arquivo, corrige a função e roda os testes outra vez. "


@pytest.fixture(params=[WordTokenEstimator, O200kTokenEstimator])
def estimator(request: pytest.FixtureRequest) -> TokenEstimator:
    made: TokenEstimator = request.param()
    return made


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
async def test_nothing_is_zero_tokens(estimator: TokenEstimator, texts: list[str]) -> None:
    assert await estimator.count(texts) == 0


async def test_the_texts_are_counted_together(estimator: TokenEstimator) -> None:
    one, other = await estimator.count([PROSE]), await estimator.count(["def f(): pass"])

    assert one > 0
    assert other > 0
    assert await estimator.count([PROSE, "", "def f(): pass"]) == one + other


async def test_twice_the_text_is_about_twice_the_tokens(estimator: TokenEstimator) -> None:
    once, twice = await estimator.count([PROSE * 50]), await estimator.count([PROSE * 100])

    assert twice == pytest.approx(2 * once, rel=0.02)


@pytest.mark.parametrize("mark", ["<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "<|fim_prefix|>"])
async def test_what_looks_like_a_special_token_is_ordinary_text(estimator: TokenEstimator, mark: str) -> None:
    assert await estimator.count([mark]) > 1
    assert await estimator.count([f"a {mark} b"]) > 3


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800 é", "\x00", "\ufeff\u2028"])
async def test_any_text_is_counted(estimator: TokenEstimator, text: str) -> None:
    assert await estimator.count([text, "palavra"]) >= await estimator.count(["palavra"])


async def test_the_size_decides_from_256_kb_on(estimator: TokenEstimator) -> None:
    counted = await estimator.count(["a " * (128 * KB)])

    assert counted != -(-256 * KB // 3)
    assert await estimator.count(["a " * (128 * KB), "b"]) == -(-(256 * KB + 1) // 3)


async def test_the_size_is_of_all_the_texts_and_in_bytes(estimator: TokenEstimator) -> None:
    assert await estimator.count(["é" * (64 * KB)] * 2) != -(-256 * KB // 3)
    assert await estimator.count(["é" * (64 * KB)] * 2 + ["漢"]) == -(-(256 * KB + 3) // 3)
    assert await estimator.count(["é" * (3 * KB * KB)]) == 2 * KB * KB
    assert await estimator.count(["\ud800" * (256 * KB)]) == 256 * KB


async def test_many_texts_are_counted(estimator: TokenEstimator) -> None:
    assert await estimator.count(["palavra"] * 10_000) == 10_000 * await estimator.count(["palavra"])


async def test_counts_at_once_do_not_disturb_each_other(estimator: TokenEstimator) -> None:
    texts = [PROSE * repeated for repeated in range(1, 40)]
    one_by_one = [await estimator.count([text]) for text in texts]

    assert await asyncio.gather(*(estimator.count([text]) for text in texts)) == one_by_one


async def test_a_cancelled_count_leaves_nothing_broken(estimator: TokenEstimator) -> None:
    expected = await estimator.count([PROSE])
    cancelled = [asyncio.create_task(estimator.count([PROSE * 3000])) for _ in range(8)]
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)

    assert await estimator.count([PROSE]) == expected
