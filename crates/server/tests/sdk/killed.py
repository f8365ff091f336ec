"""An unmodified `async for` over a run's stream while the serving process is killed and started
again: it goes on by itself, and each step is told once. Usage: killed.py BASE_URL REPOSITORY TASK

Says `seen` when the first step has been told, which is when its server is killed."""

import asyncio
import sys
import time

from langgraph_sdk import get_client


async def main(url: str, repository: str, task: str) -> None:
    client = get_client(url=url)
    thread = (await client.threads.create())["thread_id"]
    steps, ids, attempts, gap, last = [], [], [], 0.0, time.monotonic()
    body = {"messages": [{"role": "user", "content": task}], "repository": {"directory": repository}}
    async for part in client.runs.stream(thread, "coder", input=body, stream_mode=["updates"]):
        gap, last = max(gap, time.monotonic() - last), time.monotonic()
        # The client repeats the last id on events that have none of their own, such as `end`.
        if part.event in ("metadata", "updates"):
            ids.append(part.id)
        if part.event == "metadata":
            attempts.append(part.data.get("attempt"))
        if part.event == "updates":
            if not steps:
                print("seen", flush=True)
            steps.extend(message["id"] for update in part.data.values() for message in update["messages"])
        if part.event == "end":
            assert part.data == {"status": "success"}, part.data
    assert len(ids) == len(set(ids)), "an event was told twice"
    assert len(steps) == len(set(steps)), "a step was told twice"
    assert len(attempts) >= 2 and attempts == sorted(set(attempts)), f"the run was not resumed: {attempts}"
    state = await client.threads.get_state(thread)
    kept = [message["id"] for message in state["values"]["messages"] if message["type"] != "human"]
    assert steps == kept, (steps, kept)
    assert gap < 15, f"nothing came for {gap:.1f} s"
    print(f"ok {len(steps)} messages, {len(attempts)} claims, longest silence {gap:.1f} s")


asyncio.run(main(*sys.argv[1:]))
