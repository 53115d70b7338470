// One upload after the other through the API, as any frontend would do it: POST with a key, PUT to the storage.
// The key is kept in this browser, so that a reload, a crash or a retry leads to the one asset of the first try.

import { call, local, owner, pause, Refused, SignedOut } from "./api.js";

const AT_ONCE = 3;
const TRIES = 5;
// The browser sets this one itself, to the size of what it sends, and does not let a script do it.
const SET_BY_BROWSER = new Set(["content-length"]);

// Where the system does not know an extension, the browser names no type; of phones' photos many do not.
const TYPES = new Map(Object.entries({
  jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png", gif: "image/gif", webp: "image/webp", avif: "image/avif", heic: "image/heic", heif: "image/heif",
}));

const place = () => `darkroom-uploads:${owner()}`;

const typeOf = (file) => file.type || TYPES.get(file.name.split(".").pop().toLowerCase()) || "";

export function kept() {
  try {
    const list = JSON.parse(local.get(place()) || "[]");
    return Array.isArray(list) ? list.filter((one) => one?.key && one.name) : [];
  } catch {
    return [];
  }
}

function keep(entry) {
  const others = kept().filter((one) => one.key !== entry.key);
  local.set(place(), JSON.stringify([...others, entry].slice(-200)));
}

export function forget(key) {
  local.set(place(), JSON.stringify(kept().filter((one) => one.key !== key)));
}

// The tab that has an upload's file holds its lock: no other one offers the upload as left, or forgets it. Locks need a
// secure context; without them every tab believes that it is the only one.
const lockOf = (key) => `darkroom-upload:${key}`;

function hold(item) {
  const held = new Promise((release) => { item.release = release; });
  navigator.locks?.request(lockOf(item.key), () => held);
}

// Calls `use` with what is kept under the key, once no tab has its file; never, when it was done before or `signal` aborts.
export async function whenLeft(key, signal, use) {
  const left = async () => {
    const entry = kept().find((one) => one.key === key);
    if (entry && !signal.aborted) await use(entry);
  };
  if (!navigator.locks) return left();
  try {
    return await navigator.locks.request(lockOf(key), { signal }, left);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

// Of an upload that is shown as left, which another tab may have taken up since.
export async function forgetLeft(key) {
  if (!navigator.locks) return forget(key);
  return navigator.locks.request(lockOf(key), { ifAvailable: true }, (lock) => lock && forget(key));
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sha256(file) {
  if (!crypto.subtle) return undefined; // only in secure contexts: https, localhost
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return btoa(String.fromCharCode(...digest));
}

function put(upload, file, { signal, progress }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch tells no upload progress
    const abort = () => request.abort();
    signal.addEventListener("abort", abort);
    request.open(upload.method, upload.url);
    for (const [name, value] of Object.entries(upload.headers)) {
      if (!SET_BY_BROWSER.has(name.toLowerCase())) request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onloadend = () => {
      signal.removeEventListener("abort", abort);
      if (signal.aborted) reject(new DOMException("cancelled", "AbortError"));
      // 412: an earlier try did arrive, and an original is written once.
      else if ((request.status >= 200 && request.status < 300) || request.status === 412) resolve();
      else reject(new Error(request.status ? `The storage refused the upload (${request.status}).` : "The connection was lost."));
    };
    request.send(file);
  });
}

// `show(item)` is called at every change. An item: key, name, size, type, assetId?, file?, state, progress, error?
export class Uploads {
  #show;
  #registered;
  #waiting = [];
  #running = 0;
  #ended = false;

  constructor({ show, registered }) {
    this.#show = show;
    this.#registered = registered;
  }

  add(file, key = newKey(), earlier = {}) {
    const item = { ...earlier, key, file, name: file.name, size: file.size, type: typeOf(file) };
    keep({ key, name: item.name, size: item.size, type: item.type, checksum: item.checksum, assetId: item.assetId });
    hold(item);
    this.start(item);
    return item;
  }

  start(item) {
    item.control = new AbortController();
    this.#set(item, { state: "queued", progress: 0, error: "" });
    this.#waiting.push(item);
    this.#next();
  }

  cancel(item) {
    item.control?.abort();
    if (item.state === "queued") this.#set(item, { state: "cancelled" });
  }

  forget(item) {
    forget(item.key);
    item.release?.();
  }

  // Whose uploads these are has gone: nothing more is sent or shown. What was under way is kept in that owner's drawer.
  end(items) {
    this.#ended = true;
    this.#waiting = [];
    for (const item of items) {
      item.control?.abort();
      item.release?.();
    }
  }

  #set(item, changed) {
    Object.assign(item, changed);
    if (!this.#ended) this.#show(item);
  }

  async #next() {
    // A few at a time keeps memory small: each file is read whole for its checksum.
    if (this.#running >= AT_ONCE) return;
    const item = this.#waiting.shift();
    if (!item) return;
    if (item.control.signal.aborted) return this.#next();
    this.#running += 1;
    try {
      await this.#run(item);
    } finally {
      this.#running -= 1;
      this.#next();
    }
  }

  async #run(item) {
    const { signal } = item.control;
    for (let tried = 1; ; tried += 1) {
      try {
        await this.#once(item, signal);
        return;
      } catch (error) {
        if (signal.aborted) return this.#set(item, { state: "cancelled", error: "" });
        if (error instanceof Refused || error instanceof SignedOut) {
          if (error instanceof Refused) this.forget(item);
          return this.#set(item, { state: "refused", error: error.message });
        }
        const message = error instanceof TypeError ? "The server cannot be reached." : error.message;
        if (tried === TRIES) return this.#set(item, { state: "interrupted", error: message });
        this.#set(item, { state: "retrying", error: message });
        // The same key: however often it is tried, there is one asset.
        await pause(Math.max(error.after ?? 0, Math.min(1000 * 2 ** (tried - 1), 8000)), signal);
      }
    }
  }

  async #once(item, signal) {
    if (!item.checksum) {
      this.#set(item, { state: "reading" });
      item.checksum = await sha256(item.file);
    }
    signal.throwIfAborted();
    this.#set(item, { state: "registering", error: "" });
    const asset = await call("/assets", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json", "Idempotency-Key": item.key },
      body: JSON.stringify({ filename: item.name, content_type: item.type, size: item.size, checksum_sha256: item.checksum }),
    });
    signal.throwIfAborted();
    item.assetId = asset.asset_id;
    keep({ key: item.key, name: item.name, size: item.size, type: item.type, checksum: item.checksum, assetId: item.assetId });
    this.#registered(item, asset);
    if (asset.upload) {
      this.#set(item, { state: "uploading", progress: 0 });
      await put(asset.upload, item.file, { signal, progress: (part) => this.#set(item, { progress: part }) });
    } else if (asset.status === "UPLOADING") {
      throw new Refused("The time in which it could be uploaded is over. Drop it again, as a new picture.");
    }
    this.forget(item);
    this.#set(item, { state: "sent", progress: 1 });
  }
}

// Whether this is the file that an earlier upload was of: name and size first, since hashing reads all of it.
export async function isFileOf(entry, file) {
  if (file.name !== entry.name || file.size !== entry.size) return false;
  return !entry.checksum || entry.checksum === (await sha256(file));
}
