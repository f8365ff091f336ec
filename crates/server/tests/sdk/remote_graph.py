"""`RemoteGraph`, unmodified: invoke, stream, state, update, history.
Usage: remote_graph.py BASE_URL REPOSITORY"""

import asyncio
import sys

from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_sync_client


def says(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


def main(url: str) -> None:
    graph = RemoteGraph("chat", url=url)
    assert graph.invoke(says("Alone."))["messages"][-1]["type"] == "ai"

    thread = get_sync_client(url=url).threads.create()["thread_id"]
    config = {"configurable": {"thread_id": thread}}
    values = graph.invoke(says("One."), config=config)
    assert [m["type"] for m in values["messages"]] == ["human", "ai"], values
    updates = list(graph.stream(says("Two."), config=config, stream_mode="updates"))
    assert [list(update) for update in updates] == [["agent"]], updates
    modes = {part[0] for part in graph.stream(says("Three."), config=config, stream_mode=["values", "messages"])}
    assert modes >= {"values", "messages"}, modes

    state = graph.get_state(config)
    assert len(state.values["messages"]) == 6 and state.next == (), state
    history = list(graph.get_state_history(config, limit=5))
    assert len(history) == 5 and history[0].config == state.config, history
    written = graph.update_state(config, says("Noted."), as_node="agent")
    assert written["configurable"]["thread_id"] == thread, written
    assert graph.get_state(config).values["messages"][-1]["content"] == "Noted."
    nodes = graph.get_graph().nodes
    assert "agent" in nodes, nodes


async def again(url: str) -> None:
    graph = RemoteGraph("chat", url=url)
    values = await graph.ainvoke(says("Alone, and not waiting."))
    assert values["messages"][-1]["type"] == "ai", values
    parts = [part async for part in graph.astream(says("Streamed."), stream_mode="values")]
    assert parts[-1]["messages"][-1]["type"] == "ai", parts


main(sys.argv[1])
asyncio.run(again(sys.argv[1]))
print("ok")
