// The dialog of one picture: its preview, its facts, and the timeline of its events, which goes on while it is open.

import { listen } from "./api.js";
import { bytes, date, find } from "./cards.js";

const SAID = {
  AssetRegistered: ["Registered", (data) => `${data.content_type}, ${bytes(data.size)}${data.checksum_sha256 ? ", sealed with SHA-256" : ""}`],
  AssetProcessing: ["Developing began", () => "The bytes have arrived"],
  AssetReady: ["Ready", (data) => data.renditions.map((one) => `${one.name} ${one.width} × ${one.height}`).join(", ")],
  AssetFailed: ["Failed", (data) => data.failure.message],
  AssetExpired: ["Expired", () => "Nothing was uploaded in time"],
  AssetTrashed: ["Moved to the trash", () => ""],
  AssetRestored: ["Restored", () => ""],
  AssetPurged: ["Purged", () => "Its pictures are removed"],
};
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

let listening = null;
let shown = null;

export const shownId = () => shown;

export function open(asset) {
  close();
  shown = asset.asset_id;
  find("timeline").replaceChildren();
  fill(asset);
  find("details").showModal();
  listening = new AbortController();
  const seen = new Set();
  listen(`/assets/${asset.asset_id}/stream`, {
    signal: listening.signal,
    on: {
      event: (event) => {
        if (seen.has(event.sequence)) return;
        seen.add(event.sequence);
        find("timeline").append(step(event));
      },
    },
  });
}

export function close() {
  listening?.abort();
  listening = null;
  shown = null;
  if (find("details").open) find("details").close();
}

export function fill(asset) {
  find("details-title").textContent = asset.filename;
  const facts = [
    ["Id", asset.asset_id],
    ["State", asset.status],
    ["Registered", date(asset.created_at)],
    ["Declared", `${asset.content_type}, ${bytes(asset.size)}`],
  ];
  if (asset.original) facts.push(["Original", `${asset.original.format}, ${asset.original.width} × ${asset.original.height}`]);
  if (asset.failure) facts.push(["Reason", `${asset.failure.message} (${asset.failure.code})`]);
  find("details-facts").replaceChildren(...facts.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
  const place = find("details-preview");
  const preview = asset.renditions.find((one) => one.name === "preview" && one.url);
  if (!preview) return place.replaceChildren("No picture to show");
  if (place.dataset.of === asset.asset_id && place.querySelector("img")) return undefined;
  place.dataset.of = asset.asset_id;
  const image = new Image(preview.width, preview.height);
  image.alt = asset.filename;
  image.src = preview.url;
  return place.replaceChildren(image);
}

function step(event) {
  const [title, tell] = SAID[event.type] ?? [event.type, () => ""];
  const row = document.createElement("li");
  const name = document.createElement("strong");
  const rest = document.createElement("span");
  name.textContent = title;
  rest.textContent = [time.format(new Date(event.occurred_at)), tell(event.data)].filter(Boolean).join(" · ");
  row.append(name, rest);
  return row;
}
