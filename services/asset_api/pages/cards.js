// How a picture looks in the list: one card for what this browser uploads and what the server knows of it.

import { decode } from "./thumbhash.js";

const BLUR_SIDE = 32;
const SIZES = ["B", "kB", "MB", "GB"];
export const find = (id) => document.getElementById(id);

export function bytes(count) {
  let unit = 0;
  while (count >= 1000 && unit < SIZES.length - 1) { count /= 1000; unit += 1; }
  return `${unit === 0 ? count : count.toFixed(1)} ${SIZES[unit]}`;
}

const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
export const date = (text) => when.format(new Date(text));

// What is said of each state: badge, look, line under the name.
const UPLOAD = {
  queued: ["Queued", "busy", "Waits for its turn"],
  reading: ["Reading", "busy", "Computing its SHA-256"],
  registering: ["Registering", "busy", "Asking where to send it"],
  uploading: ["Uploading", "busy", ""],
  retrying: ["Trying again", "busy", "Same key, so it is never there twice"],
  sent: ["Uploaded", "busy", "Next in the bath"],
  cancelled: ["Cancelled", "calm", "Nothing more is sent"],
  interrupted: ["Interrupted", "bad", ""],
  refused: ["Refused", "bad", ""],
  missing: ["Unfinished", "bad", ""],
};
const ASSET = {
  UPLOADING: ["Awaited", "calm", "Registered; its bytes have not arrived"],
  PROCESSING: ["Developing", "busy", "Being checked and resized"],
  READY: ["Ready", "good", ""],
  FAILED: ["Failed", "bad", ""],
  EXPIRED: ["Expired", "calm", "Nothing was uploaded in time"],
  TRASHED: ["In the trash", "calm", "Can be restored until it is purged"],
  PURGED: ["Purged", "calm", "Its pictures are removed"],
};
const ASK_AGAIN = "This page was left while it was being sent, and a page cannot keep the file itself. Choose the same file again: it goes on under the same key.";

// An upload's own state is what counts until the server has its bytes.
export function phase(entry) {
  const { asset, item } = entry;
  if (asset && asset.status !== "UPLOADING") return { from: ASSET[asset.status] ?? [asset.status, "calm", ""], name: asset.status };
  if (item) return { from: UPLOAD[item.state], name: item.state };
  return { from: ASSET.UPLOADING, name: "UPLOADING" };
}

export function tabOf(entry) {
  const { name } = phase(entry);
  if (name === "READY") return "ready";
  if (name === "TRASHED" || name === "PURGED") return "trash";
  if (["FAILED", "EXPIRED", "refused", "interrupted", "missing"].includes(name)) return "failed";
  return name === "cancelled" ? "failed" : "running";
}

function line(entry, name, text) {
  const { asset, item } = entry;
  const size = bytes(asset?.original?.size ?? asset?.size ?? item?.size ?? 0);
  if (name === "uploading") return `${Math.round(item.progress * 100)} % of ${size}`;
  if (name === "READY" && asset.original) return `${asset.original.width} × ${asset.original.height} · ${size}`;
  return text ? `${text} · ${size}` : size;
}

function reason(entry, name) {
  if (name === "FAILED") return entry.asset.failure?.message ?? "It could not be processed.";
  if (name === "missing") return ASK_AGAIN;
  return entry.item?.error ?? "";
}

function actions(entry, name) {
  const running = ["queued", "reading", "registering", "uploading", "retrying"];
  const list = [];
  if (running.includes(name)) list.push(["cancel", "Cancel"]);
  if (["cancelled", "interrupted"].includes(name)) list.push(["retry", "Try again"], ["dismiss", "Dismiss"]);
  if (name === "refused") list.push(["dismiss", "Dismiss"]);
  if (name === "missing") list.push(["choose", "Choose the file again"], ["dismiss", "Forget it"]);
  if (entry.asset) list.push(["details", "Details"]);
  if (name === "READY") list.push(["download", "Download"]);
  if (name === "READY" || name === "FAILED") list.push(["trash", "Trash", "Move to the trash"]);
  if (name === "TRASHED") list.push(["restore", "Restore"]);
  return list;
}

export function makeCard() {
  return find("card").content.firstElementChild.cloneNode(true);
}

export function draw(entry, act) {
  const { card } = entry;
  const { from: [badge, look, text], name } = phase(entry);
  const title = entry.asset?.filename ?? entry.item.name;
  const part = (selector) => card.querySelector(selector);
  card.dataset.look = look;
  card.dataset.state = name;
  set(part(".name"), title);
  set(part(".badge"), badge);
  set(part(".line"), line(entry, name, text));
  const why = reason(entry, name);
  set(part(".reason"), why);
  part(".reason").hidden = !why;
  const bar = part("progress");
  bar.hidden = name !== "uploading";
  bar.setAttribute("aria-label", `Upload of ${title}`);
  bar.value = entry.item?.progress ?? 0;
  drawFrame(part(".frame"), entry, name, title);
  drawActions(part(".actions"), actions(entry, name), title, (action) => act(action, entry));
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function drawFrame(frame, entry, name, title) {
  const thumb = entry.asset?.renditions.find((rendition) => rendition.name === "thumb");
  const ready = thumb?.url;
  frame.classList.toggle("developing", !ready && tabOf(entry) === "running" && Boolean(entry.item?.file));
  // A URL lives for minutes, the picture for as long as it is shown: it is not loaded anew when its URL is.
  const wanted = ready ? `thumb:${entry.asset.asset_id}` : entry.item?.file ? `file:${entry.item.key}` : `none:${name}`;
  if (frame.dataset.shown === wanted) return;
  frame.dataset.shown = wanted;
  const blur = thumb && placeholder(entry.asset.labels.thumbhash, thumb);
  if (wanted.startsWith("none:")) {
    frame.replaceChildren(blur ?? blank(name === "TRASHED" ? "In the trash" : "No picture yet"));
    return;
  }
  const image = new Image();
  image.alt = ready ? title : "";
  image.decoding = "async";
  if (ready) { image.width = thumb.width; image.height = thumb.height; }
  image.onerror = () => frame.replaceChildren(blank("No preview"));
  image.onload = () => {
    blur?.remove();
    if (!ready || !entry.local) return;
    URL.revokeObjectURL(entry.local);
    delete entry.local;
  };
  image.src = ready ? thumb.url : (entry.local ??= URL.createObjectURL(entry.item.file));
  frame.replaceChildren(...(blur ? [blur] : []), image);
}

// What the thumbnail looks like from afar, of its shape and in its place.
function placeholder(hash, { width, height }) {
  const scale = BLUR_SIDE / Math.max(width, height);
  const pixels = hash && decode(hash, Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale)));
  if (!pixels) return null;
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true"); // the name of the picture is said beside it
  canvas.width = pixels.width;
  canvas.height = pixels.height;
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

function blank(text) {
  const said = document.createElement("span");
  said.className = "blank";
  said.textContent = text;
  return said;
}

function drawActions(place, wanted, title, act) {
  const key = wanted.map(([action]) => action).join();
  if (place.dataset.key === key) return;
  const held = place.contains(document.activeElement);
  place.dataset.key = key;
  place.replaceChildren(...wanted.map(([action, label, said = label]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.action = action;
    button.textContent = label;
    button.setAttribute("aria-label", `${said}: ${title}`);
    button.addEventListener("click", () => act(action));
    return button;
  }));
  // Whoever works with the keyboard does not lose their place because a state changed.
  if (held) place.querySelector("button")?.focus();
}
