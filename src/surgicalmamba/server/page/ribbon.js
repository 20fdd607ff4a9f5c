// The phase ribbon and the intensity curve under it, on a canvas. Hours of estimates stay cheap: a new estimate paints a few pixels,
// and everything is painted anew only when the scale changes.

// Okabe and Ito's colours, in the order of the package's own figures. A pattern tells phases apart without colour.
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
const PATTERNS = ["plain", "rising", "dots", "lines", "falling", "bars", "cross"];

export function colourOf(phase) {
  return COLOURS[phase % COLOURS.length];
}

function patternOf(phase) {
  return PATTERNS[(phase + Math.floor(phase / COLOURS.length)) % PATTERNS.length];
}

export function inkOn(phase) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colourOf(phase).slice(at, at + 2), 16) / 255).map((v) => (v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return light > 0.18 ? "#0b1116" : "#ffffff";
}

const tiles = new Map();

function tileOf(phase) {
  const key = `${phase % (COLOURS.length * PATTERNS.length)}`;
  if (tiles.has(key)) return tiles.get(key);
  const tile = document.createElement("canvas");
  tile.width = tile.height = 12;
  const pen = tile.getContext("2d");
  pen.fillStyle = colourOf(phase);
  pen.fillRect(0, 0, 12, 12);
  pen.strokeStyle = pen.fillStyle = inkOn(phase) === "#ffffff" ? "rgba(255,255,255,.5)" : "rgba(0,0,0,.42)";
  pen.lineWidth = 1.6;
  const line = (x0, y0, x1, y1) => { pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); };
  const kind = patternOf(phase);
  if (kind === "rising" || kind === "cross") for (const d of [-12, 0, 12]) line(d - 1, 13, d + 13, -1);
  if (kind === "falling" || kind === "cross") for (const d of [-12, 0, 12]) line(d - 1, -1, d + 13, 13);
  if (kind === "dots") for (const [x, y] of [[3, 3], [9, 9]]) { pen.beginPath(); pen.arc(x, y, 1.7, 0, 7); pen.fill(); }
  if (kind === "lines") for (const y of [3, 9]) line(0, y, 12, y);
  if (kind === "bars") for (const x of [3, 9]) line(x, 0, x, 12);
  tiles.set(key, tile);
  return tile;
}

export function paintSwatch(element, phase) {
  element.style.backgroundImage = `url(${tileOf(phase).toDataURL()})`;
  element.style.color = inkOn(phase);
  element.textContent = `${phase + 1}`;
}

// A ribbon of finished segments [[phase, from, to], ...], painted once.
export function paintSegments(canvas, segments, until) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 300;
  const height = canvas.clientHeight || 28;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  if (!segments.length) return;
  const first = segments[0][1];
  const span = Math.max(until - first, 1);
  for (const [phase, from, to] of segments) {
    const x = ((from - first) / span) * width;
    const wide = Math.max(((to - from) / span) * width, 0.75);
    pen.fillStyle = pen.createPattern(tileOf(phase), "repeat");
    pen.fillRect(x, 0, wide, height);
    if (wide > 16) label(pen, phase, x + wide / 2, height / 2, Math.min(height * 0.55, 15));
  }
}

function label(pen, phase, x, y, size) {
  pen.font = `700 ${size}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineWidth = 4;
  pen.strokeStyle = colourOf(phase);
  pen.strokeText(`${phase + 1}`, x, y);
  pen.fillStyle = inkOn(phase);
  pen.fillText(`${phase + 1}`, x, y);
}

const STEPS_S = [60, 120, 300, 600, 900, 1800, 3600, 7200];

export class Ribbon {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.clear();
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(canvas);
    this.resize();
  }

  destroy() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
  }

  clear() {
    this.n = 0;
    this.time = new Float64Array(1024);
    this.phase = new Uint16Array(1024);
    this.intensity = new Float32Array(1024);
    this.runs = [];
    this.painted = 0;
    this.span = 300;
    this.repaint = true;
    this.repaints = 0;
  }

  add(time, phase, intensity) {
    if (this.n === this.time.length) this.grow();
    this.time[this.n] = time;
    this.phase[this.n] = phase;
    this.intensity[this.n] = intensity ?? 0;
    this.n += 1;
    const last = this.runs[this.runs.length - 1];
    if (last) last[2] = time;
    if (!last || last[0] !== phase) this.runs.push([phase, time, time, 0]);
    this.schedule();
  }

  grow() {
    for (const name of ["time", "phase", "intensity"]) {
      const wider = new this[name].constructor(this[name].length * 2);
      wider.set(this[name]);
      this[name] = wider;
    }
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(this.canvas.clientWidth, 50);
    this.height = Math.max(this.canvas.clientHeight, 50);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.repaint = true;
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  }

  x(time) {
    return ((time - (this.n ? this.time[0] : 0)) / this.span) * this.width;
  }

  get band() {
    return { top: 0, height: Math.round(this.height * 0.5), curveTop: Math.round(this.height * 0.5) + 22, curveBottom: this.height - 24 };
  }

  paint() {
    const length = this.n ? this.time[this.n - 1] - this.time[0] : 0;
    while (length > this.span * 0.97) { this.span *= 1.5; this.repaint = true; }
    if (this.repaint) {
      this.repaint = false;
      this.repaints += 1;
      this.painted = 0;
      for (const run of this.runs) run[3] = 0;
      this.pen.clearRect(0, 0, this.width, this.height);
      this.axis();
    }
    if (this.painted < this.n) {
      const from = this.painted;
      this.paintBand(from);
      this.paintCurve(from);
      this.painted = this.n;
    }
  }

  // Runs that reach beyond the estimates already painted; pixels painted twice are painted the same. A run is [phase, from, to, width
  // at which its number was last put in the middle]; when it has grown by a fifth, the number moves.
  paintBand(from) {
    const { height } = this.band;
    const since = from ? this.time[from - 1] : -Infinity;
    for (let i = this.runs.length - 1; i >= 0 && this.runs[i][2] >= since; i -= 1) {
      const [phase, start, stop, labelled] = this.runs[i];
      const left = this.x(start);
      const begin = Math.max(left, this.x(Math.max(start, since)) - 1);
      this.pen.fillStyle = this.pen.createPattern(tileOf(phase), "repeat");
      this.pen.fillRect(begin, 0, Math.max(this.x(stop) - begin, 1), height);
      const wide = this.x(stop) - left;
      if (wide > 26 && wide >= 1.2 * labelled) {
        this.runs[i][3] = wide;
        this.pen.fillRect(left, 0, wide, height);
        label(this.pen, phase, left + wide / 2, height / 2, 18);
      }
    }
  }

  // One bar per pixel, as high as the strongest estimate that falls on it. The last one painted comes again: it is held up to the next.
  paintCurve(from) {
    const { curveTop, curveBottom } = this.band;
    const room = curveBottom - curveTop;
    this.pen.fillStyle = this.style("--curve");
    let column = -1;
    let most = 0;
    const flush = () => { if (column >= 0) this.pen.fillRect(column, curveBottom - most * room, 1, most * room); };
    for (let i = Math.max(from - 1, 0); i < this.n; i += 1) {
      const at = Math.floor(this.x(this.time[i]));
      if (at !== column) {
        // Estimates further apart than a pixel: the curve is held until the next.
        if (column >= 0) for (let gap = column; gap < at; gap += 1) { column = gap; flush(); }
        column = at;
        most = 0;
      }
      most = Math.max(most, this.intensity[i]);
    }
    flush();
  }

  axis() {
    const { curveTop, curveBottom } = this.band;
    this.pen.strokeStyle = this.style("--line");
    this.pen.fillStyle = this.style("--soft");
    this.pen.lineWidth = 1;
    this.pen.strokeRect(0.5, 0.5, this.width - 1, this.band.height - 1);
    this.pen.beginPath();
    this.pen.moveTo(0, curveBottom + 0.5);
    this.pen.lineTo(this.width, curveBottom + 0.5);
    this.pen.stroke();
    this.pen.font = "13px system-ui, sans-serif";
    this.pen.textBaseline = "top";
    this.pen.textAlign = "left";
    this.pen.fillText("transition intensity", 2, curveTop - 18);
    const step = STEPS_S.find((s) => (s / this.span) * this.width > 70) ?? 14400;
    for (let t = 0; t <= this.span; t += step) {
      const x = (t / this.span) * this.width;
      this.pen.fillRect(x, curveBottom, 1, 5);
      this.pen.textAlign = x < 20 ? "left" : x > this.width - 24 ? "right" : "center";
      this.pen.fillText(clock(t), x, curveBottom + 7);
    }
  }

  style(name) {
    return getComputedStyle(this.canvas).getPropertyValue(name).trim();
  }

  // The estimate under a pixel, or -1.
  at(pixel) {
    if (!this.n) return -1;
    const wanted = this.time[0] + (pixel / this.width) * this.span;
    let low = 0;
    let high = this.n - 1;
    if (wanted > this.time[high] + 1) return -1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.time[middle] <= wanted) low = middle; else high = middle - 1;
    }
    return low;
  }
}

export function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (v) => `${v}`.padStart(2, "0");
  return s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}` : `${Math.floor(s / 60)}:${two(s % 60)}`;
}
