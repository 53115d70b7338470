// Talks to the API: the token, requests with problems as errors, and Server-Sent Events over fetch, since EventSource
// cannot send an Authorization header.

const TOKEN = "darkroom-token";
const SILENCE_MS = 45_000; // the server says something every 15 s
const SLOWEST_MS = 15_000;

// A browser may refuse to keep anything (cookies are blocked, its storage is full): then it is kept while the page is open.
function drawer(kind) {
  const here = new Map();
  const tried = (use, instead) => { try { return use(window[kind]); } catch { return instead(); } };
  return {
    get: (name) => here.get(name) ?? tried((storage) => storage.getItem(name), () => null) ?? "",
    set: (name, text) => tried((storage) => { storage.setItem(name, text); here.delete(name); }, () => here.set(name, text)),
    drop: (name) => { here.delete(name); tried((storage) => storage.removeItem(name), () => undefined); },
  };
}

const session = drawer("sessionStorage");
export const local = drawer("localStorage");

export class Refused extends Error {} // final: trying again cannot help
export class SignedOut extends Error {}

export const token = () => session.get(TOKEN);
export const keepToken = (given) => session.set(TOKEN, given);
export const dropToken = () => session.drop(TOKEN);
// RFC 6750. Nothing else goes into a header, and of much else a browser would make no request at all.
export const isToken = (text) => /^[\w.~+/-]+=*$/.test(text);

export function owner() {
  // Read, not checked: it only names the drawer in which this browser keeps its unfinished uploads.
  try {
    const payload = token().split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
    return String(JSON.parse(new TextDecoder().decode(bytes)).sub);
  } catch {
    return "";
  }
}

async function failure(response) {
  if (response.status === 401) return new SignedOut("The token is not valid any more. Give a new one.");
  const problem = await response.json().catch(() => ({}));
  const fields = (problem.errors ?? []).map((error) => `${error.field}: ${error.message}`).join("; ");
  const text = fields || problem.detail || `The server answered ${response.status}.`;
  const error = response.status < 500 && response.status !== 429 && response.status !== 408 ? new Refused(text) : new Error(text);
  error.status = response.status;
  error.after = Number(response.headers.get("Retry-After")) * 1000 || 0;
  return error;
}

export async function call(path, { headers = {}, ...options } = {}) {
  const response = await fetch(path, { ...options, headers: { Authorization: `Bearer ${token()}`, ...headers } });
  if (!response.ok) throw await failure(response);
  return response.status === 204 ? null : response.json();
}

// Hears a stream until `signal` aborts. `on` has event(data), reset(), state("on" | "wait") and failed(error).
export async function listen(path, { signal, on }) {
  let lastId = "";
  let wait = 500;
  while (!signal.aborted) {
    try {
      lastId = await once(path, lastId, { signal, on, alive: () => { wait = 500; } });
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof SignedOut || error instanceof Refused) {
        on.failed?.(error);
        return;
      }
      lastId = error.lastId ?? lastId;
    }
    on.state?.("wait");
    await pause(wait * (0.5 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, SLOWEST_MS);
  }
}

async function once(path, lastId, { signal, on, alive }) {
  const silence = new AbortController();
  const both = AbortSignal.any([signal, silence.signal]);
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const headers = { Authorization: `Bearer ${token()}`, Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    const response = await fetch(path, { headers, signal: both, cache: "no-store" });
    if (!response.ok) throw await failure(response);
    on.state?.("on");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return lastId;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      alive();
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) lastId = dispatch(block, lastId, on);
    }
  } catch (error) {
    error.lastId = lastId; // what was heard before it broke is not asked for again
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

function dispatch(block, lastId, on) {
  const fields = { event: "message", data: [] };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "data") fields.data.push(value);
    else if (name) fields[name] = value;
  }
  if (fields.event === "reset") on.reset?.();
  else if (fields.event === "message" && fields.data.length) on.event(JSON.parse(fields.data.join("\n")));
  return fields.id ?? lastId;
}

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => { clearTimeout(timer); removeEventListener("online", end); signal?.removeEventListener("abort", end); resolve(); };
    const timer = setTimeout(end, milliseconds);
    addEventListener("online", end); // no need to wait on when the network is back
    signal?.addEventListener("abort", end);
  });
}
