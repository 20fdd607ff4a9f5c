// The page: which view is shown, what it listens to, keys and theme.

import { Events, Refused, call, download, get, setToken } from "./net.js";
import { ReplayPage } from "./replay.js";
import { clock, paintSegments, paintSwatch } from "./ribbon.js";
import { RoomView, make, readable } from "./roomview.js";

const $ = (id) => document.getElementById(id);
const main = $("main");
let about = null;
let view = null;
let rooms = [];

// ---- what is said at the top

function link(state, error) {
  const words = { live: "Live", lost: "Reconnecting", refused: "Refused", file: "File" };
  $("link").textContent = words[state] ?? state;
  $("link").dataset.state = state;
  if (state === "refused" && error?.status === 401) askForToken(error.message);
  if (state === "refused" && error?.status === 404) location.hash = "#rooms";
}

function banner(text) {
  $("banner").hidden = !text;
  if ($("banner").textContent !== text) $("banner").textContent = text;
}

let serverState = "ok";
function noteState(state) {
  if (!state || state === serverState) return;
  serverState = state;
  showBanner();
}

function showBanner() {
  if (serverState === "degraded") banner("Degraded: the record cannot be written at the moment. Recognition goes on; what is shown is kept in memory.");
  else if (about?.demo_model_is_trained === false) banner("The demo model is not trained: phases move, but they mean nothing.");
  else banner("");
}

function askForToken(text) {
  if ($("token-dialog").open) return;
  $("token-error").textContent = text ?? "";
  $("token-dialog").showModal();
}

$("token-dialog").addEventListener("close", async () => {
  setToken($("token").value.trim());
  $("token").value = "";
  await start();
});

async function guarded(action) {
  try {
    return await action();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) askForToken(error.message);
    else banner(error instanceof Refused ? error.message : "The server does not answer.");
    return null;
  }
}

const may = (role) => about && ["viewer", "operator", "admin"].indexOf(about.role) >= ["viewer", "operator", "admin"].indexOf(role);

// A view of its own: what a slow answer still does to an old view is not seen in the new one.
function mount(template) {
  const root = document.createElement("div");
  root.append(make(template));
  main.replaceChildren(root);
  return root;
}

// ---- all rooms

class RoomsPage {
  constructor() {
    this.root = mount("rooms-view");
    this.cards = new Map();
    const demo = this.root.querySelector(".demo");
    demo.hidden = !(about?.demo && may("operator"));
    demo.addEventListener("click", startDemo);
    this.events = new Events(async () => { await this.load(); return "/v1/events"; }, (message) => this.hear(message), link);
    this.resized = () => this.cards.forEach((card) => this.paint(card));
    addEventListener("resize", this.resized);
  }

  destroy() {
    this.events.close();
    removeEventListener("resize", this.resized);
  }

  async load() {
    const list = await get("/v1/sessions?limit=1");
    noteState(list.state);
    rooms = list.live.map((session) => session.id);
    for (const [id, card] of this.cards) if (!rooms.includes(id)) { card.node.remove(); this.cards.delete(id); }
    list.live.forEach((session, number) => this.show(session, number));
    this.root.querySelector(".empty").hidden = rooms.length > 0;
  }

  show(session, number) {
    let card = this.cards.get(session.id);
    if (!card) {
      const node = make("card").firstElementChild;
      node.href = `#room/${session.id}`;
      node.dataset.session = session.id;
      this.root.querySelector(".cards").append(node);
      card = { node };
      this.cards.set(session.id, card);
    }
    Object.assign(card, { session, segments: session.segments, until: session.segments.at(-1)?.[2] ?? 0 });
    const set = (selector, text) => { card.node.querySelector(selector).textContent = text; };
    set(".key", number < 9 ? `${number + 1}` : "");
    set(".name", session.name);
    set(".life", session.life);
    card.node.querySelector(".life").dataset.state = session.life;
    set(".latency", session.latency_ms == null ? "" : `${Math.round(session.latency_ms)} ms`);
    this.drops(card, session.dropped);
    if (session.phase != null) this.now(card, session.phase, session.confidence);
    this.paint(card);
  }

  drops(card, n) {
    const node = card.node.querySelector(".drops");
    node.textContent = n ? `${n} dropped` : "";
    node.classList.toggle("warning", n > 0);
  }

  now(card, phase, confidence) {
    const names = card.session.phases;
    card.node.querySelector(".phase-name").textContent = readable(names[phase] ?? `${phase}`);
    paintSwatch(card.node.querySelector(".swatch"), phase);
    card.node.querySelector(".confidence").textContent = confidence == null ? "" : `${Math.round(100 * confidence)} %`;
  }

  hear(message) {
    noteState(message.state);
    if (["room", "finished", "deleted"].includes(message.type)) { clearTimeout(this.later); this.later = setTimeout(() => guarded(() => this.load()), 100); }
    const card = this.cards.get(message.session);
    if (message.type !== "estimate" || !card) return;
    const last = card.segments.at(-1);
    if (last) last[2] = message.time_s;
    if (!last || last[0] !== message.phase) card.segments.push([message.phase, message.time_s, message.time_s]);
    card.until = message.time_s;
    this.now(card, message.phase, message.probabilities[message.phase]);
    card.node.querySelector(".latency").textContent = `${Math.round(message.latency_ms)} ms`;
    this.drops(card, message.dropped);
    if (!card.frame) card.frame = requestAnimationFrame(() => { card.frame = 0; this.paint(card); });
  }

  paint(card) {
    const first = card.segments[0]?.[1] ?? 0;
    card.node.querySelector(".time").textContent = card.segments.length ? clock(card.until - first) : "";
    paintSegments(card.node.querySelector(".mini"), card.segments, card.until);
  }
}

// ---- one room

class RoomPage {
  constructor(id) {
    this.id = id;
    this.lastRow = -1;
    this.asked = this.answered = 0; // how often the session was inspected
    this.root = document.createElement("div");
    main.replaceChildren(this.root);
    this.view = new RoomView(this.root, about?.phases ?? []);
    this.view.find(".finish").addEventListener("click", () => guarded(async () => { await call("POST", `/v1/sessions/${id}/finish`); }));
    for (const kind of ["csv", "json"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind.toUpperCase();
      button.addEventListener("click", () => guarded(() => download(`/v1/sessions/${id}/export.${kind}`, `${id}.${kind}`)));
      this.view.find(".exports").append(button);
    }
    this.events = new Events(() => this.catchUp(), (message) => this.hear(message), link);
  }

  destroy() {
    this.events.close();
    this.view.destroy();
  }

  // Everything on record by column first, then the stream from there.
  async catchUp() {
    await this.inspect();
    for (;;) {
      const found = await get(`/v1/sessions/${this.id}/estimates?after=${this.lastRow}`);
      found.row.forEach((row, i) => {
        this.view.add({ time_s: found.time_s[i], phase: found.phase[i], probabilities: null, confidence: found.confidence[i], intensity: found.intensity[i] });
        this.lastRow = row;
      });
      if (found.is_complete) break;
    }
    if (this.lastRow >= 0) {
      const newest = await get(`/v1/sessions/${this.id}/estimates?probabilities=true&after=${this.lastRow - 1}&limit=1`);
      this.view.sharpen(newest.probabilities[0]);
    }
    return `/v1/sessions/${this.id}/events?after=${this.lastRow}`;
  }

  async inspect() {
    const turn = ++this.asked;
    const session = await get(`/v1/sessions/${this.id}`);
    if (turn < this.answered) return; // a newer answer was quicker
    this.answered = turn;
    if (session.phases.join() !== this.view.phases.join()) { this.view.setPhases(session.phases); this.lastRow = -1; }
    this.session = session;
    this.view.find(".name").textContent = session.name;
    document.title = `${session.name} · surgicalmamba live`;
    this.setLife(session.life, session.note);
    this.numbers = { dropped: session.dropped, acknowledged: session.acknowledged, durable: session.durable, latency: session.latency_ms };
    this.showStats();
  }

  setLife(life, note) {
    const chip = this.view.find(".bar .life");
    chip.textContent = note ? `${life}: ${note}` : life;
    chip.dataset.state = life;
    this.view.find(".finish").hidden = !may("operator") || !["live", "waiting"].includes(life);
  }

  showStats() {
    const { dropped, acknowledged, durable, latency } = this.numbers;
    const behind = Math.max(0, acknowledged - durable);
    this.view.stats([
      ["latency", latency == null ? "–" : `${Math.round(latency)} ms`, latency > 1000],
      ["frames dropped", `${dropped}`, dropped > 0],
      ["estimates", `${this.lastRow + 1}`],
      ["frames not on record yet", `${behind}`, serverState === "degraded"],
      ["when behind", this.session.when_behind === "drop" ? "drops the oldest" : "waits"],
      ["server", serverState, serverState !== "ok"],
    ]);
  }

  hear(message) {
    noteState(message.state);
    if (message.type === "estimate") {
      if (message.row <= this.lastRow) return;
      this.lastRow = message.row;
      this.view.add({ ...message, confidence: message.probabilities[message.phase] });
      if (message.latency_ms != null) this.numbers = { dropped: message.dropped, acknowledged: message.acknowledged, durable: message.durable, latency: message.latency_ms };
    } else if (message.type === "room" || message.type === "finished") {
      guarded(() => this.inspect());
    } else if (message.type === "deleted") {
      location.hash = "#rooms";
    }
    this.showStats();
  }
}

// ---- finished sessions

class FinishedPage {
  constructor() {
    this.root = mount("finished-view");
    this.list = [];
    this.root.querySelector(".more").addEventListener("click", () => this.load());
    this.load();
  }

  destroy() {}

  async load() {
    const before = this.list.at(-1)?.created_s;
    const found = await guarded(() => get(`/v1/sessions?limit=20${before ? `&before_s=${before}` : ""}`));
    if (!found) return;
    link("live");
    noteState(found.state);
    this.list.push(...found.finished);
    this.root.querySelector(".empty").hidden = this.list.length > 0;
    this.root.querySelector(".more").hidden = found.finished.length < 20;
    for (const session of found.finished) this.show(session);
  }

  show(session) {
    const node = make("session").firstElementChild;
    const name = node.querySelector(".name");
    name.textContent = session.name;
    name.href = `#room/${session.id}`;
    node.dataset.session = session.id;
    node.querySelector(".when").textContent = new Date(session.created_s * 1000).toLocaleString();
    const until = session.segments.at(-1)?.[2] ?? 0;
    node.querySelector(".length").textContent = session.segments.length ? `${clock(until - session.segments[0][1])}, ${session.rows} estimates` : "no estimates";
    node.querySelector(".note").textContent = session.note;
    for (const kind of ["csv", "json"]) node.querySelector(`.${kind}`).addEventListener("click", () => guarded(() => download(`/v1/sessions/${session.id}/export.${kind}`, `${session.id}.${kind}`)));
    const remove = node.querySelector(".delete");
    remove.hidden = !may("admin");
    remove.addEventListener("click", async () => { if (confirm(`Delete ${session.name} and its record?`) && (await guarded(() => call("DELETE", `/v1/sessions/${session.id}`)))) node.remove(); });
    this.root.querySelector(".sessions").append(node);
    paintSegments(node.querySelector(".mini"), session.segments, until);
  }
}

async function startDemo() {
  const made = await guarded(async () => (await call("POST", "/v1/demo")).json());
  if (made) location.hash = `#room/${made.id}`;
}

// ---- which view, which keys

function route() {
  const [name, id] = location.hash.slice(1).split("/");
  view?.destroy();
  document.title = "surgicalmamba live";
  if (name === "room" && /^[0-9a-f]{16}$/.test(id ?? "")) view = new RoomPage(id);
  else if (name === "finished") view = new FinishedPage();
  else if (name === "replay") { view = new ReplayPage(main); link("file"); } else view = new RoomsPage();
  document.querySelectorAll("nav a").forEach((a) => a.toggleAttribute("aria-current", a.hash === `#${name || "rooms"}`));
}

function turn(by) {
  const at = rooms.indexOf(view?.id);
  if (rooms.length && at >= 0) location.hash = `#room/${rooms[(at + by + rooms.length) % rooms.length]}`;
}

const KEYS = {
  Escape: () => { location.hash = "#rooms"; },
  ArrowLeft: () => turn(-1),
  ArrowRight: () => turn(1),
  f: () => { location.hash = "#finished"; },
  r: () => { location.hash = "#replay"; },
  t: () => $("theme").click(),
  d: () => { if (about?.demo && may("operator")) startDemo(); },
  "?": () => $("help-dialog").showModal(),
  " ": () => view instanceof ReplayPage && view.toggle(),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (["INPUT", "SELECT", "BUTTON", "TEXTAREA"].includes(event.target.tagName) && event.key !== "Escape") return;
  if (/^[1-9]$/.test(event.key) && rooms[Number(event.key) - 1]) location.hash = `#room/${rooms[Number(event.key) - 1]}`;
  else if (KEYS[event.key]) { if (event.key === " ") event.preventDefault(); KEYS[event.key](); }
});

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("surgicalmamba-theme", document.documentElement.dataset.theme);
  if (view?.view?.ribbon) { view.view.ribbon.repaint = true; view.view.ribbon.schedule(); }
});
$("help").addEventListener("click", () => $("help-dialog").showModal());
addEventListener("hashchange", route);

async function start() {
  const theme = localStorage.getItem("surgicalmamba-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  about = await guarded(() => get("/v1/about"));
  if (about) {
    $("about").textContent = `${about.model}, engine ${about.engine}, version ${about.version}.`;
    serverState = about.state;
    showBanner();
    rooms = ((await guarded(() => get("/v1/sessions?limit=1")))?.live ?? []).map((session) => session.id);
  }
  if (!$("token-dialog").open) route();
}

start();
