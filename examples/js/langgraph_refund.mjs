/**
 * An agent on LangGraph that handles one support request and may refund it,
 * once. In examples/js, after `npm ci`:
 *
 *     export REFUND_MCP_URL=http://127.0.0.1:8000/mcp REFUND_SESSION_TOKEN=ro_session_...
 *     export OPENAI_API_KEY=... OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
 *     node langgraph_refund.mjs "The mug came broken. 25.00 back?"
 *
 * The session token names the order and the request: the model can only say how much, and why.
 */
import { realpathSync } from "node:fs";

import { MultiServerMCPClient } from "@langchain/mcp-adapters";
import { Command, MemorySaver } from "@langchain/langgraph";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, humanInTheLoopMiddleware } from "langchain";

import { deliver, show } from "./deliver.mjs";

const INSTRUCTIONS =
  "You handle one support request. Read what may be refunded, propose the refund once, and tell " +
  "the customer what the tool answered. A refund that is recorded is taken care of.";

/** Run the agent to its end; its last words. `approval`: whether a person is asked first. */
export async function run({ prompt, mcpUrl, token, modelUrl, model, approval = null }) {
  const headers = { Authorization: `Bearer ${token}` };
  const client = new MultiServerMCPClient({
    mcpServers: { refunds: { transport: "http", url: mcpUrl, headers } },
  });
  try {
    const agent = createAgent({
      model: new ChatOpenAI({
        model,
        apiKey: process.env.OPENAI_API_KEY,
        configuration: { baseURL: modelUrl },
      }),
      tools: await client.getTools(),
      systemPrompt: INSTRUCTIONS,
      checkpointer: new MemorySaver(),
      middleware: approval
        ? [humanInTheLoopMiddleware({ interruptOn: { propose_refund: true } })]
        : [],
    });
    const thread = { configurable: { thread_id: crypto.randomUUID() } };
    let state = await agent.invoke({ messages: [{ role: "user", content: prompt }] }, thread);
    while (state.__interrupt__?.length > 0) {
      const calls = state.__interrupt__.flatMap((interrupt) => interrupt.value.actionRequests);
      calls.forEach((call) => show(call.name, call.args));
      const decisions = calls.map(() => ({ type: "approve" }));
      const saved = (await agent.graph.getState(thread)).config; // The checkpoint that waits.
      const resume = () => agent.invoke(new Command({ resume: { decisions } }), saved);
      state = await deliver(resume, approval);
    }
    return state.messages.at(-1).text;
  } finally {
    await client.close();
  }
}

if (realpathSync(process.argv[1] ?? "") === import.meta.filename) {
  const env = process.env;
  const answer = await run({
    prompt: process.argv.slice(2).join(" "),
    mcpUrl: env.REFUND_MCP_URL,
    token: env.REFUND_SESSION_TOKEN,
    modelUrl: env.OPENAI_BASE_URL,
    model: env.OPENAI_MODEL,
  });
  console.log(answer);
}
