"""A Pydantic AI agent that handles one support request and may refund it, once.

    export REFUND_MCP_URL=http://127.0.0.1:8000/mcp   REFUND_SESSION_TOKEN=ro_session_...
    export OPENAI_API_KEY=...   OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
    .venv-agents/bin/python examples/python/pydantic_ai_refund.py "My mug came broken: 25 back?"

The session token names the order and the request: the model can only say how much, and why.
"""

import asyncio
import os
import sys
from functools import partial

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from deliver import deliver, show

INSTRUCTIONS = (
    "You handle one support request. Read what may be refunded, propose the refund once, and tell "
    "the customer what the tool answered. A refund that is recorded is taken care of."
)


async def run(
    *, prompt: str, mcp_url: str, token: str, model_url: str, model: str, approval: str | None
) -> str:
    """Run the agent to its end; its last words. `approval`: whether a person is asked first."""
    refunds = MCPToolset(mcp_url, headers={"Authorization": f"Bearer {token}"})
    if approval:
        refunds = refunds.approval_required(lambda context, tool, _: tool.name == "propose_refund")
    agent = Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(base_url=model_url)),
        instructions=INSTRUCTIONS,
        toolsets=[refunds],
        output_type=[str, DeferredToolRequests],
    )
    async with agent:
        result = await agent.run(prompt)
        while approval and isinstance(result.output, DeferredToolRequests):
            for call in result.output.approvals:
                show(call.tool_name, call.args)
            resume = partial(
                agent.run,
                message_history=result.all_messages(),
                deferred_tool_results=result.output.build_results(approve_all=True),
            )
            result = await deliver(resume, approval)
        return str(result.output)


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
