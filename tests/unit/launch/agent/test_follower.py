"""Following a rank from here ends when nobody listens any more."""

from __future__ import annotations

import asyncio

from glmspark.launch.agent_follow import Event, Follower
from glmspark.nodes.fleet import Fleet


def test_it_can_be_given_up_while_what_it_has_said_is_not_read() -> None:
    """As by Ctrl-C in `logs --follow`, while there are more lines than the terminal takes."""

    class Talking(Follower):
        async def _run(self) -> None:
            while True:
                await self._say("log", {"rank": 0, "line": "x"})

    async def go() -> None:
        queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=3)

        async def argv(*_: object) -> list[str]:
            return []

        task = asyncio.create_task(Talking(Fleet({}), "spark1", [], argv, queue).run())
        while not queue.full():
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2)
        assert task in done

    asyncio.run(go())
