// A recorded prediction file, played again. The file never leaves the browser.

import { RoomView, make } from "./roomview.js";

// CSV with quoted cells, as the package writes it.
function cells(line) {
  const found = [];
  let cell = "";
  let quoted = false;
  for (let i = 0; i < line.length; i += 1) {
    const c = line[i];
    if (quoted) {
      if (c === '"' && line[i + 1] === '"') { cell += '"'; i += 1; } else if (c === '"') quoted = false; else cell += c;
    } else if (c === '"') quoted = true;
    else if (c === ",") { found.push(cell); cell = ""; } else cell += c;
  }
  found.push(cell);
  return found;
}

export function parsePredictions(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const header = lines.length ? cells(lines[0]).map((name) => name.trim()) : [];
  const column = (name) => header.indexOf(name);
  if (column("phase") < 0 || column("time_s") < 0) throw new Error("This is not a prediction file: the first line must name the columns time_s and phase.");
  const shares = header.map((name, i) => [/^p_(\d+)$/.exec(name), i]).filter(([found]) => found).map(([, i]) => i);
  const names = [];
  const estimates = [];
  for (let n = 1; n < lines.length; n += 1) {
    const values = cells(lines[n]);
    const phase = Number(values[column("phase")]);
    const time = Number(values[column("time_s")]);
    if (!Number.isInteger(phase) || phase < 0 || phase > 999 || !Number.isFinite(time)) throw new Error(`Line ${n + 1} has no phase number and time.`);
    if (estimates.length && time < estimates[estimates.length - 1].time_s) throw new Error(`Line ${n + 1} goes back in time.`);
    if (column("name") >= 0 && values[column("name")]) names[phase] = values[column("name")];
    const probabilities = shares.length ? shares.map((i) => Number(values[i])) : null;
    const intensity = column("intensity") >= 0 && values[column("intensity")] !== "" ? Number(values[column("intensity")]) : null;
    estimates.push({ time_s: time, phase, probabilities, confidence: probabilities ? probabilities[phase] : null, intensity });
  }
  if (!estimates.length) throw new Error("The file has no estimates.");
  const n = estimates.reduce((most, estimate) => Math.max(most, estimate.phase + 1), Math.max(shares.length, names.length));
  return { estimates, phases: Array.from({ length: n }, (_, phase) => names[phase] ?? `Phase ${phase + 1}`) };
}

export class ReplayPage {
  constructor(main) {
    main.replaceChildren(make("replay-view"));
    this.main = main;
    const input = main.querySelector(".file");
    input.addEventListener("change", () => input.files.length && this.open(input.files[0]));
    const drop = main.querySelector(".drop");
    drop.addEventListener("dragover", (event) => event.preventDefault());
    drop.addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files.length) this.open(event.dataTransfer.files[0]); });
  }

  async open(file) {
    const problem = this.main.querySelector(".error");
    problem.textContent = "";
    try {
      this.load(parsePredictions(await file.text()), file.name);
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  load({ estimates, phases }, title) {
    this.destroy();
    this.estimates = estimates;
    this.view = new RoomView(this.main.querySelector(".player"), phases);
    const find = this.view.find;
    find(".back").hidden = find(".life").hidden = true;
    find(".name").textContent = title;
    find(".transport").hidden = false;
    this.slider = find(".position");
    this.slider.max = estimates.length;
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    find(".play").addEventListener("click", () => this.toggle());
    this.shown = 0;
    this.seek(estimates.length);
  }

  seek(count) {
    if (count < this.shown) { this.view.clear(); this.shown = 0; }
    for (; this.shown < count; this.shown += 1) this.view.add(this.estimates[this.shown]);
    this.slider.value = count;
  }

  toggle() {
    if (!this.view) return;
    if (this.timer) return this.pause();
    if (this.shown >= this.estimates.length) this.seek(1);
    this.view.find(".play").textContent = "Pause";
    let before = performance.now();
    let position = this.estimates[Math.max(this.shown - 1, 0)].time_s;
    this.timer = setInterval(() => {
      const now = performance.now();
      position += ((now - before) / 1000) * Number(this.view.find(".speed").value);
      before = now;
      let count = this.shown;
      while (count < this.estimates.length && this.estimates[count].time_s <= position) count += 1;
      this.seek(count);
      if (count >= this.estimates.length) this.pause();
    }, 100);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    if (this.view) this.view.find(".play").textContent = "Play";
  }

  destroy() {
    this.pause();
    this.view?.destroy();
    this.view = null;
  }
}
