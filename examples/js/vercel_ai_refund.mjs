/**
 * An agent on the Vercel AI SDK that handles one support request and may refund it,
 * once. In examples/js, after `npm ci`:
 *
 *     export REFUND_MCP_URL=http://127.0.0.1:8000/mcp REFUND_SESSION_TOKEN=ro_session_...
 *     export OPENAI_API_KEY=... OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
 *     node vercel_ai_refund.mjs "The mug came broken. 25.00 back?"
 *
 * The session token names the order and the request: the model can only say how much, and why.
 */
import { realpathSync } from "node:fs";

import { createMCPClient } from "@ai-sdk/mcp";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount } from "ai";

import { deliver, show } from "./deliver.mjs";

const INSTRUCTIONS =
  "You handle one support request. Read what may be refunded, propose the refund once, and tell " +
  "the customer what the tool answered. A refund that is recorded is taken care of.";

/** Run the agent to its end; its last words. `approval`: whether a person is asked first. */
export async function run({ prompt, mcpUrl, token, modelUrl, model, approval = null }) {
  const provider = createOpenAICompatible({
    name: "openai",
    baseURL: modelUrl ?? "https://api.openai.com/v1",
    apiKey: process.env.OPENAI_API_KEY,
  });
  const client = await createMCPClient({
    transport: { type: "http", url: mcpUrl, headers: { Authorization: `Bearer ${token}` } },
  });
  try {
    const settings = {
      model: provider.chatModel(model),
      instructions: INSTRUCTIONS,
      tools: await client.tools(),
      toolApproval: approval ? { propose_refund: "user-approval" } : undefined,
      stopWhen: isStepCount(12),
    };
    let messages = [{ role: "user", content: prompt }];
    let result = await generateText({ ...settings, messages });
    let asked = approvalRequests(result);
    while (asked.length > 0) {
      asked.forEach(({ toolCall }) => show(toolCall.toolName, toolCall.input));
      const yes = asked.map(({ approvalId }) => ({
        type: "tool-approval-response",
        approvalId,
        approved: true,
      }));
      messages = [...messages, ...result.responseMessages, { role: "tool", content: yes }];
      const saved = JSON.stringify(messages); // What a program stores while a person decides.
      const resume = () => generateText({ ...settings, messages: JSON.parse(saved) });
      result = await deliver(resume, approval);
      asked = approvalRequests(result);
    }
    return result.text;
  } finally {
    await client.close();
  }
}

function approvalRequests(result) {
  return result.content.filter((part) => part.type === "tool-approval-request");
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
