/**
 * An agent on the OpenAI Agents SDK that handles one support request and may refund it,
 * once. In examples/js, after `npm ci`:
 *
 *     export REFUND_MCP_URL=http://127.0.0.1:8000/mcp REFUND_SESSION_TOKEN=ro_session_...
 *     export OPENAI_API_KEY=... OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
 *     node openai_agents_refund.mjs "The mug came broken. 25.00 back?"
 *
 * The session token names the order and the request: the model can only say how much, and why.
 */
import { realpathSync } from "node:fs";

import {
  Agent,
  MCPServerStreamableHttp,
  OpenAIProvider,
  Runner,
  RunState,
  getAllMcpTools,
} from "@openai/agents";

import { deliver, show } from "./deliver.mjs";

const INSTRUCTIONS =
  "You handle one support request. Read what may be refunded, propose the refund once, and tell " +
  "the customer what the tool answered. A refund that is recorded is taken care of.";

/** Run the agent to its end; its last words. `approval`: whether a person is asked first. */
export async function run({ prompt, mcpUrl, token, modelUrl, model, approval = null }) {
  const refunds = new MCPServerStreamableHttp({
    name: "refunds",
    url: mcpUrl,
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
    clientSessionTimeoutSeconds: 30, // The default, 5, gives up connecting on a busy machine.
  });
  const runner = new Runner({
    modelProvider: new OpenAIProvider({ baseURL: modelUrl, apiKey: process.env.OPENAI_API_KEY }),
    tracingDisabled: true,
  });
  await refunds.connect();
  try {
    const support = { name: "support", instructions: INSTRUCTIONS, model };
    const agent = approval
      ? new Agent({ ...support, tools: await toolsThatAsk(refunds) })
      : new Agent({ ...support, mcpServers: [refunds] });
    let result = await runner.run(agent, prompt);
    while (result.interruptions.length > 0) {
      const saved = result.state.toString(); // What a program stores while a person decides.
      result.interruptions.forEach((call) => show(call.name, call.arguments));
      const resume = async () => {
        const state = await RunState.fromString(agent, saved);
        state.getInterruptions().forEach((call) => state.approve(call));
        return runner.run(agent, state);
      };
      result = await deliver(resume, approval);
    }
    return result.finalOutput;
  } finally {
    await refunds.close();
  }
}

/** The server's tools; the framework pauses before it proposes a refund. */
async function toolsThatAsk(server) {
  const tools = await getAllMcpTools({ mcpServers: [server] });
  return tools.map((tool) =>
    tool.name === "propose_refund" ? { ...tool, needsApproval: async () => true } : tool,
  );
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
