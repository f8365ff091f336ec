"""The load that every Python peer gets: clients in a closed loop, no time to think.

A client asks for its next turn when it has the answer to the last one, until the time is up. Clients
are spread over processes, because one Python process cannot use a second core; they start together.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
import uuid
from collections import Counter, namedtuple
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

# What a model would have said; the same text is stored by every product.
REPLY = "Nothing new. " * 20

# (threads, clients): one client for each thread, then several clients on one thread.
TURNS = [(1, 1), (16, 16), (64, 64), (256, 256), (1, 2), (1, 16)]

# Workflows at a time, and steps of each.
STEPS = [1, 16, 64]
N_STEPS = 50

# One answered turn; times are of the machine's monotonic clock, which all processes share.
Turn = namedtuple("Turn", "thread message begun ended")

_barrier = None


def arguments(**more):
    """The options that all scripts share, and those of one of them as name=(default, help)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each case lasts")
    parser.add_argument("--processes", type=int, default=1, help="processes that carry the clients")
    parser.add_argument("--clients-max", type=int, default=256, help="leave larger cases out")
    for name, (default, text) in more.items():
        parser.add_argument(f"--{name}", default=default, required=default is None, help=text)
    return parser.parse_args()


def async_clients(client, threads, seconds):
    """Runs one coroutine for each entry of `threads`, all on this process's event loop."""

    async def all_of_them():
        await asyncio.gather(*(client(*warm) for warm in _warm_up(threads)))
        until = await asyncio.to_thread(_start_line) + seconds
        loops = await asyncio.gather(*(_async_loop(client, thread, until) for thread in threads))
        return [turn for loop in loops for turn in loop]

    return all_of_them()


def thread_clients(client, threads, seconds):
    """Runs one operating system thread for each entry of `threads`."""
    with ThreadPoolExecutor(max_workers=len(threads)) as pool:
        list(pool.map(lambda warm: client(*warm), _warm_up(threads)))
        until = _start_line() + seconds
        loops = [pool.submit(_thread_loop, client, thread, until) for thread in threads]
        return [turn for loop in loops for turn in loop.result()]


def _warm_up(threads):
    """A turn for each client that is not counted: it opens connections and loads what comes late."""
    return [(f"warm-{uuid.uuid4().hex}", uuid.uuid4().hex) for _ in threads]


def _start_line():
    """Blocks until every process is warm."""
    _barrier.wait(timeout=60)
    return time.monotonic()


async def _async_loop(client, thread, until):
    turns = []
    while (begun := time.monotonic()) < until:
        message = uuid.uuid4().hex
        await client(thread, message)
        turns.append(Turn(thread, message, begun, time.monotonic()))
    return turns


def _thread_loop(client, thread, until):
    turns = []
    while (begun := time.monotonic()) < until:
        message = uuid.uuid4().hex
        client(thread, message)
        turns.append(Turn(thread, message, begun, time.monotonic()))
    return turns


def spread(worker, n_threads, n_clients, options, *more):
    """The turns of `worker(index, threads, seconds, *more)` in each process.

    Threads get names of their own in every case, so that no case starts with a history.
    """
    case = uuid.uuid4().hex[:8]
    threads = [f"{case}-{idx % n_threads}" for idx in range(n_clients)]
    n = min(options.processes, n_clients)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(n)
    with ProcessPoolExecutor(n, mp_context=context, initializer=_join, initargs=(barrier,)) as pool:
        parts = [pool.submit(worker, idx, threads[idx::n], options.seconds, *more) for idx in range(n)]
        return [turn for part in parts for turn in part.result()]


def _join(barrier):
    global _barrier
    _barrier = barrier


def report_turns(peer, store, n_threads, n_clients, turns, replies):
    """Prints a line of figures. `replies` holds the message each stored reply answers."""
    found = Counter(replies)
    millis = sorted((turn.ended - turn.begun) * 1e3 for turn in turns)
    _print(
        peer=peer,
        store=store,
        threads=n_threads,
        clients=n_clients,
        turns=len(turns),
        turns_per_s=round(len(turns) / _spent(turns), 1),
        p50_ms=_share(millis, 0.5),
        p99_ms=_share(millis, 0.99),
        lost=sum(1 for turn in turns if found[turn.message] == 0),
        doubled=sum(1 for turn in turns if found[turn.message] > 1),
    )


def report_steps(peer, store, n_workflows, done):
    """Prints a line about durable steps, the beginnings and ends of their workflows included."""
    steps = round(len(done) * N_STEPS / _spent(done), 1)
    _print(peer=peer, store=store, workflows=n_workflows, steps_per_s=steps)


def _spent(turns):
    return max(turn.ended for turn in turns) - min(turn.begun for turn in turns)


def _share(millis, share):
    return round(millis[int((len(millis) - 1) * share)], 2) if millis else 0.0


def _print(**fields):
    print(json.dumps(fields), flush=True)
