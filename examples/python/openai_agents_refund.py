"""An OpenAI Agents SDK agent that handles one support request and may refund it, once.

    export REFUND_MCP_URL=http://127.0.0.1:8000/mcp   REFUND_SESSION_TOKEN=ro_session_...
    export OPENAI_API_KEY=...   OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
    .venv-agents/bin/python examples/python/openai_agents_refund.py "My mug came broken: 25 back?"

The session token names the order and the request: the model can only say how much, and why.
"""

import asyncio
import os
import sys

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, RunResult, RunState
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

from deliver import deliver, show

INSTRUCTIONS = (
    "You handle one support request. Read what may be refunded, propose the refund once, and tell "
    "the customer what the tool answered. A refund that is recorded is taken care of."
)


# Tracing would send prompts and tools' answers to OpenAI, whoever's model server is used.
UNTRACED = RunConfig(tracing_disabled=True)


async def run(
    *, prompt: str, mcp_url: str, token: str, model_url: str, model: str, approval: str | None
) -> str:
    """Run the agent to its end; its last words. `approval`: whether a person is asked first."""
    async with MCPServerStreamableHttp(
        params={"url": mcp_url, "headers": {"Authorization": f"Bearer {token}"}},
        require_approval={"propose_refund": "always"} if approval else "never",
    ) as refunds:
        agent = Agent(
            name="support",
            instructions=INSTRUCTIONS,
            model=OpenAIResponsesModel(model, AsyncOpenAI(base_url=model_url)),
            mcp_servers=[refunds],
        )
        result = await Runner.run(agent, prompt, run_config=UNTRACED)
        while approval and result.interruptions:
            for call in result.interruptions:
                show(call.name, call.arguments)
            saved = result.to_state().to_string()  # what a program stores while a person decides

            async def resume(saved: str = saved) -> RunResult:
                state = await RunState.from_string(agent, saved)
                for call in state.get_interruptions():
                    state.approve(call)
                return await Runner.run(agent, state, run_config=UNTRACED)

            result = await deliver(resume, approval)
        return str(result.final_output)


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
