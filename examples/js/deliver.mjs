/**
 * Hands a person's yes in the framework to the paused run: once, twice one after the other, or
 * twice at the same moment, as a double click, a redelivered webhook or a restarted worker does.
 *
 * `resume` continues the paused run and resolves to what came of it. The answer is the last
 * delivery's that got through (a framework may refuse the second); if none did, the first refusal
 * is thrown. In your own program `await resume()` is all that is needed.
 */
export async function deliver(resume, approval) {
  const times = approval === "once" ? 1 : 2;
  const deliveries = [];
  for (let n = 0; n < times; n += 1) {
    const delivery = resume();
    deliveries.push(delivery);
    if (approval !== "twice_at_once") await Promise.allSettled([delivery]);
  }
  const settled = await Promise.allSettled(deliveries);
  const through = settled.findLast(({ status }) => status === "fulfilled");
  if (!through) throw settled[0].reason;
  return through.value;
}

/**
 * What a person is shown before the yes. Display only: the approval that counts is Refund Once's.
 * Standard error, so that standard output has the agent's last words alone.
 */
export function show(name, args) {
  const words = typeof args === "string" ? args : JSON.stringify(args);
  console.error(`The agent wants to call ${name} with ${words}`);
}
