// Uploads pictures through the API just as any frontend would: POST, PUT to S3, then ask until it is decided.

const TOKEN = "darkroom-token";
const AT_ONCE = 3;
const POLL_MS = 500;
const POLL_LIMIT_MS = 5 * 60 * 1000;
const DECIDED = new Set(["READY", "FAILED", "EXPIRED", "TRASHED", "PURGED"]);
// The browser sets this one itself, to the size of what it sends, and does not let a script do it.
const SET_BY_BROWSER = new Set(["content-length"]);
const find = (id) => document.getElementById(id);

class Refused extends Error {}

function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    // Out of the address, so that it is neither bookmarked nor shared.
    history.replaceState(null, "", location.pathname);
  }
}

function show(notice = "") {
  find("sign-in").hidden = token() !== "";
  find("work").hidden = token() === "";
  find("notice").textContent = notice;
}

function forgetToken(notice) {
  sessionStorage.removeItem(TOKEN);
  show(notice);
}

async function call(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    headers: { Authorization: `Bearer ${token()}`, ...options.headers },
  });
  if (response.ok) return response.json();
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) forgetToken("The token is not valid any more. Give a new one.");
  const fields = (problem.errors ?? []).map((error) => `${error.field}: ${error.message}`).join("; ");
  const text = fields || problem.detail || `The server answered ${response.status}.`;
  // A refusal is final; trouble of the server (5xx) can be tried again with the same key.
  throw response.status < 500 ? new Refused(text) : new Error(text);
}

async function sha256(file) {
  if (!crypto.subtle) return undefined; // only in secure contexts: https, localhost
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return btoa(String.fromCharCode(...digest));
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function put(upload, file, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch tells no upload progress
    request.open(upload.method, upload.url);
    for (const [name, value] of Object.entries(upload.headers)) {
      if (!SET_BY_BROWSER.has(name.toLowerCase())) request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onload = () => {
      // 412: an earlier try did arrive, and an original is written once.
      if (request.status < 300 || request.status === 412) resolve();
      else reject(new Error(`The storage refused the upload (${request.status}).`));
    };
    request.onerror = () => reject(new Error("The upload was interrupted."));
    request.send(file);
  });
}

function addRow(file) {
  const row = find("asset").content.firstElementChild.cloneNode(true);
  row.querySelector(".name").textContent = file.name;
  find("assets").prepend(row);
  return row;
}

function showState(row, status, reason = "") {
  row.dataset.status = status;
  row.querySelector(".state").textContent = status;
  row.querySelector(".reason").textContent = reason;
}

function showPictures(row, asset) {
  const thumb = asset.renditions.find((rendition) => rendition.name === "thumb");
  if (!thumb) return;
  const image = new Image(thumb.width, thumb.height);
  image.src = thumb.url;
  image.alt = asset.filename;
  row.querySelector(".pictures").replaceChildren(image);
  const sizes = asset.renditions.map((one) => `${one.name} ${one.width} × ${one.height}`).join(", ");
  row.querySelector(".state").textContent = `READY: ${sizes}`;
}

async function untilDecided(row, id) {
  const ends = Date.now() + POLL_LIMIT_MS;
  while (Date.now() < ends) {
    const asset = await call(`/assets/${id}`);
    showState(row, asset.status, asset.failure?.message);
    if (DECIDED.has(asset.status)) {
      showPictures(row, asset);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error("It takes unusually long.");
}

async function run(row, file, key) {
  const bar = row.querySelector("progress");
  const again = row.querySelector(".again");
  again.hidden = true;
  bar.hidden = false;
  try {
    showState(row, "Reading");
    const wanted = { filename: file.name, content_type: file.type, size: file.size, checksum_sha256: await sha256(file) };
    showState(row, "Registering");
    const asset = await call("/assets", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": key },
      body: JSON.stringify(wanted),
    });
    if (asset.upload) {
      showState(row, "Uploading");
      await put(asset.upload, file, (part) => { bar.value = part; });
    }
    bar.hidden = true;
    await untilDecided(row, asset.asset_id);
  } catch (error) {
    bar.hidden = true;
    showState(row, error instanceof Refused ? "REFUSED" : "Interrupted", error.message);
    // The same key: however often it is tried, there is one asset.
    again.hidden = error instanceof Refused;
    again.onclick = () => run(row, file, key);
  }
}

async function add(files) {
  const waiting = files.map((file) => [addRow(file), file]);
  const worker = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) await run(...next, randomKey());
  };
  // A few at a time keeps memory small: each file is read whole for its checksum.
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

function listen() {
  const drop = find("drop");
  for (const name of ["dragover", "drop"]) {
    // Also outside the frame: a browser would else leave the page and open the picture.
    addEventListener(name, (event) => event.preventDefault());
  }
  drop.addEventListener("dragover", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    add([...event.dataTransfer.files]);
  });
  find("files").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = "";
  });
  find("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, find("token").value.trim());
    find("token").value = "";
    show();
  });
  find("sign-out").addEventListener("click", () => forgetToken("The token is forgotten."));
  addEventListener("hashchange", () => { takeTokenFromAddress(); show(); });
}

takeTokenFromAddress();
listen();
show();
