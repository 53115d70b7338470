// The page: puts together sign-in, uploads, the list and the live state.

import { call, dropToken, isToken, keepToken, listen, owner, Refused, SignedOut, token } from "./api.js";
import { draw, find, makeCard, phase, tabOf } from "./cards.js";
import * as details from "./details.js";
import { forget, forgetLeft, isFileOf, kept, Uploads, whenLeft } from "./uploads.js";

const PAGE = 48;
const TABS = ["all", "running", "ready", "failed", "trash"];
const NOTHING = {
  all: "No pictures yet. Drop some above.",
  running: "Nothing is on its way.",
  ready: "Nothing is ready yet.",
  failed: "Nothing has failed.",
  trash: "The trash is empty.",
};

const entries = new Map(); // by asset id, or by key before there is one
let tab = "all";
const older = { true: null, false: null }; // where the trash and the rest go on
let live = null;
let choosing = null;
const refreshing = new Map();

// URLs of pictures are signed for minutes, so they are asked for when a card comes into sight.
const inSight = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    inSight.unobserve(target);
    for (const { card, asset } of entries.values()) if (card === target && asset?.status === "READY") refresh(asset.asset_id);
  }
}, { rootMargin: "300px" });

const begunUploads = () => new Uploads({
  show: (item) => show(entryOfItem(item)),
  registered: (item, asset) => merge(asset, item),
});
let uploads = begunUploads();

// The list

function entryOfItem(item) {
  return (item.assetId && entries.get(item.assetId)) || entries.get(item.key) || addEntry(item.key, { item });
}

function addEntry(id, content, where = "prepend") {
  const entry = { card: makeCard(), ...content };
  entries.set(id, entry);
  find("assets")[where](entry.card);
  return entry;
}

function merge(asset, item, where) {
  let entry = entries.get(asset.asset_id);
  const waiting = item && entries.get(item.key);
  if (waiting) {
    // The card of the upload becomes the asset's; one that the live state made in the meantime goes.
    if (entry && entry !== waiting) entry.card.remove();
    if (entry?.asset && entry.asset.version > asset.version) asset = entry.asset;
    entries.delete(item.key);
    entries.set(asset.asset_id, waiting);
    entry = waiting;
  }
  entry ??= addEntry(asset.asset_id, {}, where);
  if (item) entry.item = item;
  // A list tells less of an asset than its own address does: it does not replace what is known of the same version.
  const known = entry.asset?.version ?? 0;
  if (asset.version > known || (asset.version === known && "original" in asset)) entry.asset = asset;
  show(entry);
  if (!("original" in entry.asset)) inSight.observe(entry.card);
}

function show(entry) {
  const before = entry.card.dataset.state;
  draw(entry, act);
  entry.card.hidden = tab === "all" ? tabOf(entry) === "trash" : tabOf(entry) !== tab;
  const { from: [badge], name } = phase(entry);
  if (before && before !== name && ["READY", "FAILED", "interrupted", "refused", "TRASHED"].includes(name)) {
    announce(`${entry.asset?.filename ?? entry.item.name}: ${badge}. ${entry.card.querySelector(".reason").textContent}`);
  }
  if (entry.asset && details.shownId() === entry.asset.asset_id) details.fill(entry.asset);
  count();
}

function count() {
  const counts = { all: 0, running: 0, ready: 0, failed: 0, trash: 0 };
  for (const entry of entries.values()) {
    const its = tabOf(entry);
    counts[its] += 1;
    if (its !== "trash") counts.all += 1;
  }
  for (const name of TABS) {
    const button = document.querySelector(`[data-tab="${name}"]`);
    button.querySelector("b").textContent = counts[name] || "";
    button.setAttribute("aria-pressed", String(name === tab));
  }
  find("empty").hidden = counts[tab] > 0;
  find("empty").textContent = NOTHING[tab];
}

function announce(text) {
  find("announce").textContent = text;
}

// What can be done with a picture

const ACTIONS = {
  cancel: (entry) => uploads.cancel(entry.item),
  retry: (entry) => uploads.start(entry.item),
  dismiss: async (entry) => {
    if (entry.item.file) uploads.forget(entry.item);
    else await forgetLeft(entry.item.key);
    delete entry.item;
    if (entry.asset) return show(entry);
    entry.card.remove();
    for (const [id, one] of entries) if (one === entry) entries.delete(id);
    return count();
  },
  choose: (entry) => {
    choosing = entry;
    find("again").click();
  },
  details: (entry) => {
    details.open(entry.asset);
    if (!("original" in entry.asset)) refresh(entry.asset.asset_id);
  },
  download: async (entry) => {
    const { url } = await call(`/assets/${entry.asset.asset_id}/download`);
    const link = document.createElement("a");
    link.href = url; // the storage answers with Content-Disposition: attachment
    link.rel = "noreferrer";
    link.click();
  },
  trash: async (entry) => changed(entry, await call(`/assets/${entry.asset.asset_id}`, { method: "DELETE" })),
  restore: async (entry) => changed(entry, await call(`/assets/${entry.asset.asset_id}/restore`, { method: "POST" })),
};

async function changed(entry, answer) {
  if (!entry.card.isConnected) return; // somebody else has signed in since
  if (answer?.asset_id) merge(answer);
  else await refresh(entry.asset.asset_id);
}

async function act(action, entry) {
  try {
    await ACTIONS[action](entry);
  } catch (error) {
    failed(error);
  }
}

function failed(error) {
  if (error instanceof SignedOut) return signOut(error.message);
  return notice(error instanceof TypeError ? "The server cannot be reached." : error.message);
}

function notice(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

// The live state: events say that something changed; what it is now is asked once.

function refresh(id) {
  if (refreshing.has(id)) return refreshing.set(id, "again");
  refreshing.set(id, "once");
  const mine = live; // whoever signs in later has another one
  return call(`/assets/${id}`)
    .then((asset) => mine === live && merge(asset))
    .catch((error) => {
      if (error instanceof Refused || error instanceof SignedOut) return;
      setTimeout(() => mine === live && refresh(id), 2000);
    })
    .finally(() => {
      if (mine !== live) return;
      const again = refreshing.get(id) === "again";
      refreshing.delete(id);
      if (again) refresh(id);
    });
}

function onEvent(event) {
  const known = entries.get(event.asset_id)?.asset;
  if (!known || known.version < event.sequence) refresh(event.asset_id);
}

// What is in the trash is not in the list of all, and has pages of its own.
async function load({ trash = tab === "trash", cursor } = {}) {
  const query = new URLSearchParams({ limit: PAGE, ...(trash && { status: "TRASHED" }), ...(cursor && { cursor }) });
  const mine = live;
  const page = await call(`/assets?${query}`);
  if (mine !== live) return;
  for (const asset of page.assets) merge(asset, undefined, "append");
  older[trash] = page.next_cursor;
  showMore();
  return page.assets.map((asset) => asset.asset_id);
}

function showMore() {
  find("more").hidden = !older[tab === "trash"];
}

async function loadAll() {
  const mine = live;
  const told = (error) => mine === live && failed(error);
  const read = new Set();
  for (const trash of [false, true]) {
    if (mine === live) for (const id of (await load({ trash }).catch(told)) ?? []) read.add(id);
  }
  for (const { key } of kept()) if (mine === live) whenLeft(key, mine.signal, unfinished).catch(told);
  count();
  // What was shown before, of older pages, may have changed unheard as well: one after the other, for it may be much.
  for (const id of [...entries.keys()]) {
    if (mine === live && entries.get(id)?.asset && !read.has(id)) await refresh(id);
  }
}

// An upload that an earlier visit left: its asset tells whether the bytes have arrived after all.
async function unfinished({ key, name, size, type, checksum, assetId }) {
  if ([...entries.values()].some((entry) => entry.item?.key === key)) return;
  const item = { key, name, size, type, checksum, assetId, state: "missing", progress: 0 };
  if (assetId) {
    const mine = live;
    const asset = entries.get(assetId)?.asset ?? (await call(`/assets/${assetId}`).catch((error) => {
      if (error.status !== 404) throw error;
    }));
    if (mine !== live) return undefined;
    if (!asset) {
      forget(key);
      return notice(`The upload of ${name} was not finished, and is not known any more. Drop it again if you want it.`);
    }
    if (asset.status !== "UPLOADING") return forget(key);
    return merge(asset, item);
  }
  return show(entryOfItem(item));
}

function connect() {
  live?.abort();
  live = new AbortController();
  const state = (now) => {
    find("live").dataset.state = now;
    find("live-text").textContent = now === "on" ? "Live" : "Reconnecting";
  };
  let first = true;
  listen("/assets/stream", {
    signal: live.signal,
    on: {
      event: onEvent,
      reset: loadAll,
      failed,
      state: (now) => {
        state(now);
        // The stream first, the list second: what changes in between is heard.
        if (now === "on" && first) { first = false; loadAll(); }
      },
    },
  });
}

// Files

async function add(files) {
  notice("");
  for (const file of files) {
    const left = [...entries.values()].filter((entry) => entry.item?.state === "missing");
    let entry = null;
    for (const one of left) if (!entry && (await isFileOf(one.item, file))) entry = one;
    if (entry) resume(entry, file);
    else uploads.add(file);
  }
}

function resume(entry, file) {
  const { key, checksum, assetId } = entry.item;
  entry.item = uploads.add(file, key, { checksum, assetId });
  show(entry);
}

async function again(files) {
  const entry = choosing;
  choosing = null;
  if (!entry || !files.length) return;
  if (await isFileOf(entry.item, files[0])) resume(entry, files[0]);
  else notice(`That is another file than ${entry.item.name} was. Choose the same one, or drop it above as a new picture.`);
}

// Sign-in

function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  // Out of the address, so that it is neither bookmarked nor shared.
  history.replaceState(null, "", location.pathname);
  takeToken(given);
}

function takeToken(given) {
  notice("");
  if (isToken(given)) keepToken(given);
  else notice("That is no token. A token is one word of letters, digits and . - _ ~ + /");
}

function begin() {
  const signedIn = token() !== "";
  find("sign-in").hidden = signedIn;
  find("work").hidden = !signedIn;
  find("session").hidden = !signedIn;
  if (!signedIn) return;
  find("who").textContent = owner();
  find("who").title = owner();
  connect();
}

// Nothing of one owner is shown to the next one, or goes on in their name.
function leave() {
  live?.abort();
  live = null;
  details.close();
  uploads.end([...entries.values()].flatMap((entry) => entry.item ?? []));
  uploads = begunUploads();
  for (const entry of entries.values()) entry.card.remove();
  entries.clear();
  refreshing.clear();
  older.true = older.false = choosing = null;
  notice("");
}

function signOut(text) {
  dropToken();
  leave();
  begin();
  notice(text);
}

function wire() {
  const drop = find("drop");
  let depth = 0;
  for (const name of ["dragover", "drop"]) {
    // Also outside the frame: a browser would else leave the page and open the picture.
    addEventListener(name, (event) => event.preventDefault());
  }
  addEventListener("dragenter", () => { depth += 1; drop.classList.add("over"); });
  addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) drop.classList.remove("over"); });
  addEventListener("drop", (event) => {
    depth = 0;
    drop.classList.remove("over");
    if (token()) add([...event.dataTransfer.files]);
  });
  find("choose").addEventListener("click", () => find("files").click());
  for (const [id, use] of [["files", add], ["again", again]]) {
    find(id).addEventListener("change", (event) => {
      const files = [...event.target.files];
      event.target.value = "";
      use(files).catch(failed);
    });
  }
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.addEventListener("click", () => {
      tab = button.dataset.tab;
      for (const entry of entries.values()) show(entry);
      count();
      showMore();
    });
  }
  find("more").addEventListener("click", () => load({ cursor: older[tab === "trash"] }).catch(failed));
  find("details-close").addEventListener("click", () => details.close());
  find("details").addEventListener("close", () => details.close());
  find("details").addEventListener("click", (event) => { if (event.target === find("details")) details.close(); });
  find("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    takeToken(find("token").value.trim());
    find("token").value = "";
    begin();
  });
  find("sign-out").addEventListener("click", () => signOut("Signed out: the token is forgotten."));
  addEventListener("hashchange", () => {
    const before = owner();
    takeTokenFromAddress();
    if (owner() !== before) leave();
    begin();
  });
  addEventListener("beforeunload", (event) => {
    const sending = [...entries.values()].some((entry) => ["reading", "registering", "uploading", "retrying", "queued"].includes(entry.item?.state) && entry.item.file);
    if (sending) event.preventDefault();
  });
}

takeTokenFromAddress();
wire();
begin();
