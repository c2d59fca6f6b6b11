// What the page asks the server. Addresses are relative, so that the browser sends the cookie that belongs to the page's own.

export async function ask(path, query = {}, options = {}) {
  const parts = Object.entries(query).filter(([, value]) => value !== "" && value != null && value !== false);
  const search = new URLSearchParams(parts.map(([key, value]) => [key, value === true ? "1" : value]));
  let response;
  try {
    response = await fetch(`api/${path}${parts.length ? `?${search}` : ""}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The viewer does not answer: orlog open was ended. Start it again, and use its new address.");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new Error(response.headers.get("content-type")?.includes("json") ? JSON.parse(text).error : text || `the viewer answered ${response.status}.`);
}

export const get = async (path, query, options) => (await ask(path, query, options)).json();

export const post = async (path, body) =>
  (await ask(path, {}, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  })).json();

export async function getEpisode(path, query, options) {
  // See orlog/viewer/episode.py for what lines are.
  const head = await get(path, query, options);
  for (const one of head.series) {
    if (one.error) continue;
    const text = atob(one.lines);
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
    const [all, points] = [new Float64Array(bytes.buffer), text.length / 8 / one.shown];
    one.lines = Array.from({ length: one.shown }, (_, index) => all.subarray(index * points, (index + 1) * points));
  }
  return head;
}

export async function getWhenReady(path, query, progress) {
  // Work that takes longer than a request is asked for until it is done.
  for (;;) {
    const found = await get(path, query);
    if (found.state === "ready") return found.result;
    if (progress(found.done, found.total) === false) return null;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}
