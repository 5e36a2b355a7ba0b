/**
 * An agent without a framework, a loop over the official MCP client, that handles one support
 * request and may refund it, once. In examples/js, after `npm ci`:
 *
 *     export REFUND_MCP_URL=http://127.0.0.1:8000/mcp REFUND_SESSION_TOKEN=ro_session_...
 *     export OPENAI_API_KEY=... OPENAI_MODEL=...      # OPENAI_BASE_URL for another model server
 *     node mcp_sdk_refund.mjs "The mug came broken. 25.00 back?"
 *
 * The session token names the order and the request: the model can only say how much, and why.
 */
import { realpathSync } from "node:fs";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

import { deliver, show } from "./deliver.mjs";

const INSTRUCTIONS =
  "You handle one support request. Read what may be refunded, propose the refund once, and tell " +
  "the customer what the tool answered. A refund that is recorded is taken care of.";
const TURNS_MAX = 12; // A model that never stops calling tools is stopped here.

/** Run the agent to its end; its last words. `approval`: whether a person is asked first. */
export async function run({ prompt, mcpUrl, token, modelUrl, model, approval = null }) {
  const client = new Client(
    { name: "support", version: "1.0.0" },
    { versionNegotiation: { mode: "auto" } },
  );
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(mcpUrl), { requestInit }));
  try {
    const agent = { client, tools: (await client.listTools()).tools, modelUrl, model };
    let messages = [
      { role: "system", content: INSTRUCTIONS },
      { role: "user", content: prompt },
    ];
    messages = await talk(agent, messages, { pauses: Boolean(approval) });
    while (openCalls(messages).length > 0) {
      openCalls(messages).forEach((call) => show(call.function.name, call.function.arguments));
      const saved = JSON.stringify(messages); // What a program stores while a person decides.
      const resume = async () => {
        const approved = await answerCalls(agent, JSON.parse(saved));
        return talk(agent, approved, { pauses: true });
      };
      messages = await deliver(resume, approval);
    }
    return messages.at(-1).content;
  } finally {
    await client.close();
  }
}

/** Model and tools in turn, until the model has no more calls, or (`pauses`) wants a refund. */
async function talk(agent, messages, { pauses }) {
  for (let turn = 0; turn < TURNS_MAX; turn += 1) {
    messages = [...messages, await askModel(agent, messages)];
    const names = openCalls(messages).map((call) => call.function.name);
    if (names.length === 0 || (pauses && names.includes("propose_refund"))) return messages;
    messages = await answerCalls(agent, messages);
  }
  throw new Error(`The model was still calling tools after ${TURNS_MAX} turns.`);
}

function openCalls(messages) {
  return messages.at(-1).tool_calls ?? [];
}

async function askModel({ tools, modelUrl = "https://api.openai.com/v1", model }, messages) {
  const functions = tools.map(({ name, description, inputSchema }) => ({
    type: "function",
    function: { name, description, parameters: inputSchema },
  }));
  const answer = await fetch(`${modelUrl}/chat/completions`, {
    method: "POST",
    headers: {
      "Authorization": `Bearer ${process.env.OPENAI_API_KEY}`,
      "Content-Type": "application/json",
    },
    body: JSON.stringify({ model, messages, tools: functions }),
  });
  if (!answer.ok) throw new Error(`The model answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()).choices[0].message;
}

async function answerCalls({ client }, messages) {
  const answers = openCalls(messages).map(async (call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: await callTool(client, call.function),
  }));
  return [...messages, ...(await Promise.all(answers))];
}

/** What the tool said, as text. Nothing is sent twice here: the model decides what comes next. */
async function callTool(client, { name, arguments: words }) {
  try {
    const result = await client.callTool({ name, arguments: JSON.parse(words) });
    const text = result.content.map((part) => part.text ?? "").join("\n");
    return result.isError ? `Error: ${text}` : text;
  } catch (error) {
    return `Error: ${error.message}`;
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
