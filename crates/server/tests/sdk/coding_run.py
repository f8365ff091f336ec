"""A coding run through the unmodified LangGraph SDK: create, stream, lose the connection, resume,
wait, cancel. Usage: coding_run.py BASE_URL REPOSITORY"""

import asyncio
import sys

from langgraph_sdk import get_client


async def main(url: str, repository: str) -> None:
    client = get_client(url=url)
    assistants = await client.assistants.search()
    assert {"coder", "chat"} <= {a["graph_id"] for a in assistants}, assistants

    thread = (await client.threads.create())["thread_id"]
    task = {
        "messages": [{"role": "user", "content": "Write the notes."}],
        "repository": {"directory": repository},
    }
    modes = ["values", "updates", "custom", "messages-tuple"]
    run = await client.runs.create(
        thread, "coder", input=task, stream_mode=modes, headers={"Idempotency-Key": f"sdk-{thread}"}
    )
    again = await client.runs.create(
        thread, "coder", input=task, stream_mode=modes, headers={"Idempotency-Key": f"sdk-{thread}"}
    )
    assert run["run_id"] == again["run_id"], "the same key is the same run"

    # The connection is lost in the middle.
    seen, cursor = [], None
    async for part in client.runs.join_stream(thread, run["run_id"], stream_mode=modes, last_event_id="-1"):
        seen.append(part)
        cursor = part.id or cursor
        if part.event == "updates":
            break
    async for part in client.runs.join_stream(thread, run["run_id"], stream_mode=modes, last_event_id=cursor):
        seen.append(part)
    assert seen[0].event == "metadata" and seen[0].data["run_id"] == run["run_id"], seen[0]
    assert seen[-1].event == "end" and seen[-1].data == {"status": "success"}, seen[-1]
    ids = [part.id for part in seen if part.event not in ("end",) and part.id]
    whole = [
        part
        async for part in client.runs.join_stream(thread, run["run_id"], stream_mode=modes, last_event_id="-1")
    ]
    stored = lambda parts: [(p.event, p.data) for p in parts if p.event in ("metadata", "updates", "values")]
    assert stored(seen) == stored(whole), "nothing lost, nothing twice"
    assert ids, "events carry ids"

    values = await client.runs.join(thread, run["run_id"])
    assert values["result"] == "The notes are written.", values
    assert "+written" in values["diff"], values
    state = await client.threads.get_state(thread)
    assert state["values"]["messages"][-1]["type"] in ("ai", "tool"), state
    assert state["next"] == [], state
    assert len(await client.threads.get_history(thread)) >= 3
    assert (await client.threads.get(thread))["status"] == "idle"
    assert [r["run_id"] for r in await client.runs.list(thread)] == [run["run_id"]]

    # One call that streams, one that waits.
    other = (await client.threads.create())["thread_id"]
    events = [p.event async for p in client.runs.stream(other, "chat", input={"messages": [
        {"role": "user", "content": "Who is there?"}]}, stream_mode="messages-tuple")]
    assert events[0] == "metadata" and "messages" in events and events[-1] == "end", events
    values = await client.runs.wait(other, "chat", input={"messages": [{"role": "user", "content": "And now?"}]})
    assert [m["type"] for m in values["messages"]] == ["human", "ai", "human", "ai"], values
    assert (await client.runs.wait(None, "chat", input={"messages": [
        {"role": "user", "content": "On a thread of its own."}]}))["messages"], "stateless"

    # A second run is cancelled.
    second = await client.runs.create(thread, "coder", input=task)
    await client.runs.cancel(thread, second["run_id"], wait=True)
    ended = await client.runs.get(thread, second["run_id"])
    assert ended["status"] in ("interrupted", "success"), ended
    print("ok", ended["status"])


asyncio.run(main(sys.argv[1], sys.argv[2]))
