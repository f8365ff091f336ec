"""Turns of LangGraph with its PostgreSQL or SQLite saver.

A graph of one node that appends a reply to the messages; a turn is one `ainvoke` on a thread id, with
the default durability ("async": the checkpoint of the input is written while the node runs).
"""

import asyncio
from contextlib import asynccontextmanager

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

import load


@asynccontextmanager
async def saver_of(store):
    """The saver as its documentation sets it up: a pool for PostgreSQL, WAL for SQLite (by itself)."""
    if not store.startswith("postgres"):
        async with AsyncSqliteSaver.from_conn_string(store) as saver:
            yield saver
        return
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(store, min_size=4, max_size=20, kwargs=settings) as pool:
        yield AsyncPostgresSaver(pool)


def reply(state):
    asked = state["messages"][-1].id
    return {"messages": [AIMessage(load.REPLY, response_metadata={"answers": asked})]}


def graph_with(saver):
    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph.compile(checkpointer=saver)


def config_of(thread):
    return {"configurable": {"thread_id": thread}}


def worker(_idx, threads, seconds, store):
    async def measure():
        async with saver_of(store) as saver:
            graph = graph_with(saver)

            async def client(thread, message):
                said = HumanMessage("What is new?", id=message)
                await graph.ainvoke({"messages": [said]}, config_of(thread))

            return await load.async_clients(client, threads, seconds)

    return asyncio.run(measure())


async def replies_in(store, threads):
    """The messages that are answered in the final states, counted where both message and reply are."""
    found = []
    async with saver_of(store) as saver:
        graph = graph_with(saver)
        for thread in threads:
            state = await graph.aget_state(config_of(thread))
            messages = state.values.get("messages", [])
            asked = {message.id for message in messages if message.type == "human"}
            answered = (message.response_metadata.get("answers") for message in messages)
            found += [message for message in answered if message in asked]
    return found


async def set_up(store):
    async with saver_of(store) as saver:
        await saver.setup()


def main():
    options = load.arguments(store=(None, "a PostgreSQL URL or the path of a new SQLite file"))
    store = options.store
    name = "postgres" if store.startswith("postgres") else "sqlite"
    asyncio.run(set_up(store))
    for n_threads, n_clients in load.TURNS:
        if n_clients <= options.clients_max:
            turns = load.spread(worker, n_threads, n_clients, options, store)
            replies = asyncio.run(replies_in(store, {turn.thread for turn in turns}))
            load.report_turns("langgraph", name, n_threads, n_clients, turns, replies)


if __name__ == "__main__":
    main()
