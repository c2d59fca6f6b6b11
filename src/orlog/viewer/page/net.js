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

export async function getWhenReady(path, query, progress) {
  // Work that takes longer than a request is asked for until it is done.
  for (;;) {
    const found = await get(path, query);
    if (found.state === "ready") return found.result;
    if (progress(found.done, found.total) === false) return null;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}
