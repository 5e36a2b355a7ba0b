"""A LangGraph agent that handles one support request and may refund it, once.

    export REFUND_MCP_URL=http://127.0.0.1:8000/mcp   REFUND_SESSION_TOKEN=ro_session_...
    export OPENAI_API_KEY=...   OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
    .venv-langchain/bin/python examples/python/langgraph_refund.py "My mug came broken: 25 back?"

The session token names the order and the request: the model can only say how much, and why.
"""

import asyncio
import os
import sys
from functools import partial

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deliver import deliver, show

INSTRUCTIONS = (
    "You handle one support request. Read what may be refunded, propose the refund once, and tell "
    "the customer what the tool answered. A refund that is recorded is taken care of."
)


async def run(
    *, prompt: str, mcp_url: str, token: str, model_url: str, model: str, approval: str | None
) -> str:
    """Run the agent to its end; its last words. `approval`: whether a person is asked first."""
    refunds = {
        "transport": "streamable_http",
        "url": mcp_url,
        "headers": {"Authorization": f"Bearer {token}"},
    }
    agent = create_agent(
        ChatOpenAI(model=model, base_url=model_url),
        await MultiServerMCPClient({"refunds": refunds}).get_tools(),
        system_prompt=INSTRUCTIONS,
        middleware=[HumanInTheLoopMiddleware({"propose_refund": True})] if approval else [],
        checkpointer=InMemorySaver(),
    )
    thread = {"configurable": {"thread_id": "support"}}
    state = await agent.ainvoke({"messages": [("user", prompt)]}, thread)
    while approval and "__interrupt__" in state:
        calls = state["__interrupt__"][0].value["action_requests"]
        for call in calls:
            show(call["name"], call["args"])
        saved = (await agent.aget_state(thread)).config  # what is stored while a person decides
        approved = Command(resume={"decisions": [{"type": "approve"} for _ in calls]})
        state = await deliver(partial(agent.ainvoke, approved, saved), approval)
    return str(state["messages"][-1].content)


if __name__ == "__main__":
    print(
        asyncio.run(
            run(
                prompt=" ".join(sys.argv[1:]),
                mcp_url=os.environ["REFUND_MCP_URL"],
                token=os.environ["REFUND_SESSION_TOKEN"],
                model_url=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
                model=os.environ["OPENAI_MODEL"],
                approval=None,
            )
        )
    )
