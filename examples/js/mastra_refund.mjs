/**
 * An agent on Mastra that handles one support request and may refund it,
 * once. In examples/js, after `npm ci`:
 *
 *     export REFUND_MCP_URL=http://127.0.0.1:8000/mcp REFUND_SESSION_TOKEN=ro_session_...
 *     export OPENAI_API_KEY=... OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
 *     node mastra_refund.mjs "The mug came broken. 25.00 back?"
 *
 * The session token names the order and the request: the model can only say how much, and why.
 *
 * Mastra's MCP client sends a call a second time by itself when the connection breaks. With Refund
 * Once the second call is answered with the same refund.
 */
import { realpathSync } from "node:fs";

import { Mastra } from "@mastra/core";
import { Agent } from "@mastra/core/agent";
import { InMemoryStore } from "@mastra/core/storage";
import { MCPClient } from "@mastra/mcp";

import { deliver, show } from "./deliver.mjs";

const INSTRUCTIONS =
  "You handle one support request. Read what may be refunded, propose the refund once, and tell " +
  "the customer what the tool answered. A refund that is recorded is taken care of.";
const SETTINGS = { maxSteps: 12 };

/** Run the agent to its end; its last words. `approval`: whether a person is asked first. */
export async function run({ prompt, mcpUrl, token, modelUrl, model, approval = null }) {
  const client = new MCPClient({
    id: crypto.randomUUID(),
    servers: {
      refunds: {
        url: new URL(mcpUrl),
        requestInit: { headers: { Authorization: `Bearer ${token}` } },
        requireToolApproval: ({ toolName }) => Boolean(approval) && toolName === "propose_refund",
      },
    },
  });
  try {
    const support = new Agent({
      id: "support",
      name: "support",
      instructions: INSTRUCTIONS,
      model: { id: `openai/${model}`, url: modelUrl, apiKey: process.env.OPENAI_API_KEY },
      tools: await client.listTools(),
    });
    // Approvals wait in a storage; one that outlives the process is @mastra/libsql or @mastra/pg.
    const mastra = new Mastra({ agents: { support }, storage: new InMemoryStore(), logger: false });
    const agent = mastra.getAgent("support");
    let result = await agent.generate(prompt, SETTINGS);
    while (result.finishReason === "suspended") {
      const { runId, suspendPayload } = result;
      const { toolCallId, toolName, args } = suspendPayload;
      show(toolName, args);
      const resume = () => agent.approveToolCallGenerate({ runId, toolCallId, ...SETTINGS });
      result = await deliver(resume, approval);
    }
    return result.text;
  } finally {
    await client.disconnect();
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
