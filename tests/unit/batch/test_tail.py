import asyncio

import pytest

from arkv_sglang.batch.scheduler import Limits
from arkv_sglang.bench import tail, virtual_time
from arkv_sglang.bench.simulated import OUTPUT_TOKENS

CORPORA = tail.corpora(600)


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("engines", [2, 4])
@pytest.mark.parametrize("spread_s", [0.0, 20.0])
def test_few_engines_are_idle_at_the_end_of_a_skewed_corpus(
    name: str, engines: int, spread_s: float
) -> None:
    found = tail.measure(name, CORPORA[name], engines, spread_s, Limits(OUTPUT_TOKENS))
    assert found.idle_share < 0.1 or found.longest_share > 0.9, found


def test_hours_of_virtual_time_take_no_time_and_pass_in_order() -> None:
    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        await asyncio.to_thread(lambda: None)
        return [loop.time()]

    assert virtual_time.run(scene()) == [pytest.approx(7200)]


def test_a_run_in_which_nothing_can_happen_does_not_hang() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        virtual_time.run(stuck())
