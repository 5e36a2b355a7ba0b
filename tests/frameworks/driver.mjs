/**
 * Runs JavaScript examples for the fault matrix: one start of Node, many cells.
 *
 * Reads one JSON object a line on stdin, {id, example, mcp_url, token, model_url, model, prompt,
 * approval}, runs `run` of examples/js/{example}_refund.mjs, and writes one JSON object a line on
 * stdout, {id, answer, error}, as each cell ends; one of the two is null. At most
 * FRAMEWORKS_CELLS_AT_ONCE cells run together; the others wait their turn. Ends by itself when
 * stdin has ended and every cell has been answered.
 */
import { createInterface } from "node:readline";

const CELLS_AT_ONCE = Number(process.env.FRAMEWORKS_CELLS_AT_ONCE ?? 8);
// Longer than a held answer (8 s) and every retry of a framework's model client together; a cell
// that is still running then hangs, and says so instead of holding up the matrix.
const CELL_SECONDS_MAX = 120;

process.env.OPENAI_API_KEY ??= "none"; // The scripted model asks for none; the clients want one.
process.env.MASTRA_TELEMETRY_DISABLED = "1"; // Nothing leaves this machine.
process.env.LANGSMITH_TRACING = "false";
globalThis.AI_SDK_LOG_WARNINGS = false;
console.log = console.info = console.debug = console.error; // stdout carries answers and no more.
// A rejection that a framework left behind after its answer must not end the other cells.
process.on("unhandledRejection", (reason) => console.error("left behind:", reason));

// Loading a framework holds up everything else for seconds on a busy machine, and the clients' own
// timeouts would fire meanwhile. So what was asked for so far is loaded before any cell runs.
const loading = new Map();

function load({ example }) {
  if (!/^[a-z_]+$/.test(example)) throw new Error(`no such example: ${example}`);
  if (!loading.has(example)) {
    loading.set(example, import(`../../examples/js/${example}_refund.mjs`));
  }
  return loading.get(example);
}

async function runCell(cell) {
  const { run } = await load(cell);
  await Promise.allSettled(loading.values());
  return run({
    prompt: cell.prompt,
    mcpUrl: cell.mcp_url,
    token: cell.token,
    modelUrl: cell.model_url,
    model: cell.model,
    approval: cell.approval ?? null,
  });
}

/** Rejects when the cell has taken too long. What it was doing goes on; nobody waits for it. */
async function within(seconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    const say = () => reject(new Error(`still running after ${seconds} s`));
    timer = setTimeout(say, seconds * 1000);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function answer(line) {
  let id = null;
  let result;
  try {
    const cell = JSON.parse(line);
    id = cell.id;
    const words = await within(CELL_SECONDS_MAX, runCell(cell));
    result = { id, answer: String(words ?? ""), error: null };
  } catch (error) {
    result = { id, answer: null, error: `${error?.name}: ${error?.message}`.slice(0, 500) };
    console.error(`cell ${id}:`, error);
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}

const waiting = [];
let running = 0;
let ended = false;

function next() {
  while (running < CELLS_AT_ONCE && waiting.length > 0) {
    running += 1;
    answer(waiting.shift()).finally(() => {
      running -= 1;
      next();
    });
  }
  // Frameworks leave timers and sockets open; the last answer is flushed before the end.
  if (ended && running === 0) process.stdout.write("", () => process.exit(0));
}

createInterface({ input: process.stdin })
  .on("line", (line) => {
    if (line.trim()) waiting.push(line);
    next();
  })
  .on("close", () => {
    ended = true;
    next();
  });
