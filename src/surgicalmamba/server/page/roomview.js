// One room: the current phase, the timeline, phases in expected order. Live, finished and replayed sessions are shown by the same view.

import { Ribbon, clock, inkOn, paintSwatch } from "./ribbon.js";

export function readable(name) {
  const words = name.replace(/[_-]+/g, " ").replace(/([a-z])([A-Z])/g, "$1 $2").trim().toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export function make(id) {
  return document.getElementById(id).content.cloneNode(true);
}

export class RoomView {
  constructor(parent, phases) {
    parent.replaceChildren(make("room-view"));
    this.root = parent;
    this.find = (selector) => parent.querySelector(selector);
    this.ribbon = new Ribbon(this.find(".ribbon"));
    const point = (event) => this.read(event.offsetX);
    this.find(".ribbon").addEventListener("pointermove", point);
    this.find(".ribbon").addEventListener("pointerdown", point);
    this.find(".ribbon").addEventListener("pointerleave", () => { this.find(".readout").textContent = this.legend; });
    this.setPhases(phases);
  }

  destroy() {
    this.ribbon.destroy();
    cancelAnimationFrame(this.frame);
  }

  setPhases(phases) {
    this.phases = phases;
    this.legend = "Numbers and patterns stand for the phases below. Point at the ribbon to read it.";
    this.find(".readout").textContent = this.legend;
    this.rows = phases.map((name, phase) => {
      const row = document.createElement("tr");
      const title = document.createElement("th");
      title.scope = "row";
      const mark = document.createElement("span");
      mark.className = "mark";
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      paintSwatch(swatch, phase);
      const label = document.createElement("span");
      label.className = "label";
      label.textContent = readable(name);
      title.append(mark, swatch, label);
      const cell = document.createElement("td");
      const track = document.createElement("div");
      track.className = "track";
      const bar = document.createElement("div");
      bar.className = "fill";
      bar.style.backgroundImage = swatch.style.backgroundImage;
      const value = document.createElement("span");
      value.className = "value";
      track.append(bar);
      cell.append(track, value);
      cell.className = "probability";
      const time = document.createElement("td");
      time.className = "number";
      row.append(title, cell, time);
      return { row, mark, bar, value, time };
    });
    this.find(".phases tbody").replaceChildren(...this.rows.map((r) => r.row));
    this.clear();
  }

  clear() {
    this.ribbon.clear();
    this.spent = new Float64Array(this.phases.length);
    this.now = null;
    this.since = 0;
    this.dirty = true;
    this.schedule();
  }

  // estimate: {time_s, phase, probabilities (or null), confidence, intensity}
  add(estimate) {
    const before = this.now;
    if (before) this.spent[before.phase] += Math.max(0, estimate.time_s - before.time_s);
    if (!before || before.phase !== estimate.phase) this.since = estimate.time_s;
    this.first = before ? this.first : estimate.time_s;
    this.now = estimate;
    this.ribbon.add(estimate.time_s, estimate.phase, estimate.intensity);
    this.schedule();
  }

  // The probabilities of the newest estimate, which a past by column leaves out.
  sharpen(probabilities) {
    if (this.now && probabilities) this.now.probabilities = probabilities;
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.render(); });
  }

  render() {
    const now = this.now;
    const swatch = this.find(".now .swatch");
    swatch.hidden = !now;
    this.find(".now .percent").textContent = now && now.confidence != null ? `${Math.round(100 * now.confidence)} %` : "–";
    this.find(".now .clock").textContent = now ? clock(now.time_s - this.first) : "0:00";
    this.find(".now .since").textContent = now ? `for ${clock(now.time_s - this.since)}` : "";
    const name = now ? readable(this.phases[now.phase] ?? `${now.phase}`) : "Waiting for frames";
    if (this.find(".now .phase-name").textContent !== name) {
      this.find(".now .phase-name").textContent = name;
      if (now) {
        paintSwatch(swatch, now.phase);
        swatch.style.color = inkOn(now.phase);
        this.find(".ribbon").setAttribute("aria-label", `Phases over time; now ${name}`);
      }
    }
    this.rows.forEach(({ row, mark, bar, value, time }, phase) => {
      const isNow = now?.phase === phase;
      const share = now?.probabilities ? now.probabilities[phase] : isNow ? now.confidence : null;
      row.classList.toggle("current", isNow);
      mark.textContent = isNow ? "▶" : this.spent[phase] > 0 ? "✓" : "";
      mark.title = isNow ? "now" : this.spent[phase] > 0 ? "seen" : "not yet";
      bar.style.width = `${share == null ? 0 : (100 * share).toFixed(1)}%`;
      value.textContent = share == null ? "" : `${(100 * share).toFixed(0)} %`;
      time.textContent = this.spent[phase] > 0 || isNow ? clock(this.spent[phase]) : "–";
    });
  }

  read(pixel) {
    const i = this.ribbon.at(pixel);
    if (i < 0) return;
    const phase = this.ribbon.phase[i];
    const at = clock(this.ribbon.time[i] - this.ribbon.time[0]);
    this.find(".readout").textContent = `${at}   ${phase + 1} ${readable(this.phases[phase] ?? "")}   intensity ${this.ribbon.intensity[i].toFixed(2)}`;
  }

  stats(items) {
    const nodes = items.map(([label, value, isWarning]) => {
      const box = document.createElement("div");
      box.className = isWarning ? "stat warning" : "stat";
      const number = document.createElement("strong");
      number.textContent = value;
      const text = document.createElement("span");
      text.textContent = label;
      box.append(number, text);
      return box;
    });
    this.find(".stats").replaceChildren(...nodes);
  }
}
