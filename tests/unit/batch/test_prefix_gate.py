import asyncio
from collections.abc import Awaitable, Callable

from arkv_sglang.batch.prefix_gate import PrefixGate

Log = list[str]


def play(scene: Callable[[PrefixGate, Log], Awaitable[None]]) -> Log:
    log: Log = []
    asyncio.run(asyncio.wait_for(scene(PrefixGate(), log), 5))
    return log


async def request(gate: PrefixGate, log: Log, name: str, prefix: int | None) -> None:
    async with gate.enter(prefix) as let_others_in:
        log.append(f"{name} starts")
        await asyncio.sleep(0.005)
        if name == "bad":
            raise ValueError
        let_others_in()
        log.append(f"{name} has its prompt")
        await asyncio.sleep(0.005)
        log.append(f"{name} ends")


def test_the_others_of_a_prefix_start_when_the_first_has_its_prompt() -> None:
    async def scene(gate: PrefixGate, log: Log) -> None:
        await asyncio.gather(*(request(gate, log, name, 1) for name in "abc"))

    log = play(scene)
    assert log[:2] == ["a starts", "a has its prompt"]
    assert set(log[2:4]) == {"b starts", "c starts"} or log[2] == "a ends"
    assert log.index("b starts") < log.index("b has its prompt") < log.index("b ends")


def test_other_prefixes_and_none_do_not_wait() -> None:
    async def scene(gate: PrefixGate, log: Log) -> None:
        names = {"a": 1, "b": 2, "c": None, "d": None}
        await asyncio.gather(*(request(gate, log, *item) for item in names.items()))

    assert play(scene)[:4] == [f"{name} starts" for name in "abcd"]


def test_a_first_one_that_fails_or_is_given_up_holds_nobody_back() -> None:
    async def scene(gate: PrefixGate, log: Log) -> None:
        failing = asyncio.create_task(request(gate, log, "bad", 1))
        await asyncio.sleep(0)
        await asyncio.gather(failing, request(gate, log, "b", 1), return_exceptions=True)
        given_up = asyncio.create_task(request(gate, log, "c", 1))
        await asyncio.sleep(0)
        given_up.cancel()
        await request(gate, log, "d", 1)

    log = play(scene)
    assert log.index("bad starts") < log.index("b starts") and "b ends" in log
    assert "c ends" not in log and log[-1] == "d ends"


def test_one_that_comes_after_all_are_done_is_a_first_one_again() -> None:
    async def scene(gate: PrefixGate, log: Log) -> None:
        for name in "ab":
            await request(gate, log, name, 1)
        assert not gate._computing

    assert play(scene)[-1] == "b ends"
