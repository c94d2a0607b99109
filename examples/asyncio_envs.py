"""Hundreds of envs that wait for a server, on one event loop, and one policy for all of them.

python examples/asyncio_envs.py

Each env is a client of a server that keeps a secret number from 0 to 99 for it and answers a guess, after some time,
with "higher", "lower" or "right". The server runs in this program; a simulator or a language model elsewhere is talked
to in the same way. The envs' methods are coroutines, so that none waits for another; the policy guesses the middle of
what is left, for whichever envs have an answer, and needs 7 guesses at most. Prints how many guesses an episode took,
and how long answers took in all beside how long the program took: all envs wait at once.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from gymbridge import AsyncEnvPool

NUMBERS = 100
SLOWEST_ANSWER = 0.1  # seconds; the mean is half of it


class Server:
    """Thinks of a number when it is told "new", and answers guesses; one conversation for each client."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that all answers took, one after the other
        self.conversations: list[asyncio.Task[Any] | None] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[str, int]]:
        """Gives the address, and ends once the clients are gone."""
        listening = await asyncio.start_server(self.converse, "127.0.0.1", 0)
        yield listening.sockets[0].getsockname()
        listening.close()
        await asyncio.gather(*filter(None, self.conversations))

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.conversations.append(asyncio.current_task())
        secret = 0
        while line := await reader.readline():
            await self.think()
            if line == b"new\n":
                secret, answer = random.randrange(NUMBERS), b"ready"
            else:
                guess = int(line)
                answer = b"right" if guess == secret else b"higher" if guess < secret else b"lower"
            writer.write(answer + b"\n")
        writer.close()
        with suppress(ConnectionError):  # the client has gone without an answer
            await writer.wait_closed()

    async def think(self) -> None:
        seconds = random.uniform(0, SLOWEST_ANSWER)
        self.seconds += seconds
        await asyncio.sleep(seconds)


class GuessingEnv(gym.Env[Any, Any]):
    """Observes the lowest and the highest number that are left; an action is a guess, and costs 1."""

    observation_space = gym.spaces.Box(0, NUMBERS - 1, (2,), np.int64)
    action_space = gym.spaces.Discrete(NUMBERS)

    def __init__(self, host: str, port: int):
        self.address = host, port
        self.writer: asyncio.StreamWriter | None = None

    async def reset(  # type: ignore[override]  # a coroutine
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address)
        await self.ask("new")
        self.low, self.high = 0, NUMBERS - 1
        return np.array([self.low, self.high]), {}

    async def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        answer = await self.ask(str(action))
        if answer == "higher":
            self.low = max(self.low, action + 1)
        elif answer == "lower":
            self.high = min(self.high, action - 1)
        return np.array([self.low, self.high]), -1.0, answer == "right", False, {}

    async def close(self) -> None:  # type: ignore[override]
        if self.writer is not None:
            self.writer.close()
            await self.writer.wait_closed()

    async def ask(self, request: str) -> str:
        assert self.writer is not None
        self.writer.write(f"{request}\n".encode())
        return (await self.reader.readline()).decode().strip()


def policy(observations: torch.Tensor) -> torch.Tensor:
    """The middle, for each row."""
    return observations.sum(-1) // 2


async def play(pool: AsyncEnvPool, transitions: int) -> list[int]:
    """Plays for that many transitions at least; how many guesses each episode took."""
    guesses = torch.zeros(pool.num_envs, dtype=torch.int64)  # of each env since its last reset
    of_episodes: list[int] = []
    pool.async_reset_send()
    td = await pool.async_reset_recv_async(min_get=pool.num_envs)
    while transitions > 0:
        td["action"] = policy(td["observation"])
        pool.async_step_and_maybe_reset_send(td)
        td, following = await pool.async_step_and_maybe_reset_recv_async(min_get=1)  # and all others with an answer
        env_index, done = td["env_index"], td["next", "done"].squeeze(-1)
        guesses[env_index] += 1
        of_episodes += guesses[env_index[done]].tolist()
        guesses[env_index[done]] = 0
        transitions -= len(td)
        td = following  # where an episode ended, the first observation of the next one
    return of_episodes


async def run(num_envs: int, transitions: int) -> list[int]:
    server = Server()
    async with server.running() as (host, port):
        pool = AsyncEnvPool([lambda: GuessingEnv(host, port)] * num_envs, backend="asyncio")
        start = time.perf_counter()
        try:
            of_episodes = await play(pool, transitions)
            seconds = time.perf_counter() - start
        finally:  # `with` would wait here for envs that wait for the server, which runs on this loop
            await asyncio.to_thread(pool.shutdown)
    mean = sum(of_episodes) / max(1, len(of_episodes))
    print(f"{num_envs} envs, {len(of_episodes)} episodes of {mean:.2f} guesses, {max(of_episodes, default=0)} at most")
    print(f"answers that take {server.seconds:.1f} s one after the other came within {seconds:.1f} s")
    return of_episodes


def main(argv: Sequence[str] | None = None) -> list[int]:
    """Plays, and returns how many guesses each episode took."""
    parser = argparse.ArgumentParser(description="Hundreds of envs that wait for a server, on one event loop.")
    parser.add_argument("--num-envs", type=int, default=300)
    parser.add_argument("--transitions", type=int, default=10_000)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    return asyncio.run(run(args.num_envs, args.transitions))


if __name__ == "__main__":
    main()
