"""The reference's counterpart of `chat`: one node that answers after a while."""
import asyncio
from typing import Annotated
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

async def agent(state: MessagesState) -> dict:
    text = state["messages"][-1].content
    if "slow" in text:
        await asyncio.sleep(2)
    if "fail" in text:
        raise ValueError("boom")
    return {"messages": [AIMessage(content="Hello you.")]}

builder = StateGraph(MessagesState)
builder.add_node("agent", agent)
builder.add_edge(START, "agent")
builder.add_edge("agent", END)
graph = builder.compile()
