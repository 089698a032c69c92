"use strict";

// What the pages do beyond their text: theme, copying, tables, the heat map, the timeline of the
// worst step, the flame graphs, and the way to Perfetto. All names from the run are set by textContent. Without this
// script the verdict, the bars and the tables are there as they stand.

const PERFETTO_PING_MS = 50;
const PERFETTO_GIVE_UP_MS = 10_000;
const HEAT_HEIGHT = { least: 120, most: 460, row: 14 }; // CSS pixels
const TIMELINE = { row: 22, gap: 10, label: 96, axis: 22 }; // CSS pixels
const FLAME = { row: 20, top: 2, full: 0.3 }; // CSS pixels; full: the excess with the full colour
const SMALLEST_LABEL = 28; // CSS pixels of a slice that has its name in it
const NO_CELL = 0; // the code of a cell that was not recorded

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, text = "") {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

// --- numbers as text ---

/** A time in ms with three significant digits, in the unit that suits it. */
function timeText(ms) {
  if (!Number.isFinite(ms)) return "not recorded";
  const size = Math.abs(ms);
  if (size >= 1000) return `${(ms / 1000).toPrecision(3)} s`;
  if (size >= 1 || size === 0) return `${Number(ms.toPrecision(3))} ms`;
  return `${Number((ms * 1000).toPrecision(3))} µs`;
}

/** Round numbers (1, 2 or 5 times a power of ten) that divide a range into at most `most` parts. */
function roundTicks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((factor) => factor * rough).find((one) => span / one <= most);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high; at += 1) {
    ticks.push(Number((at * step).toPrecision(12)));
  }
  return ticks;
}

// --- data in the page ---

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  return bytes;
}

async function inflated(base64) {
  const stream = new Blob([bytesOf(base64)])
    .stream()
    .pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Cells of a layer: all high bytes, then all low bytes, rank by rank. */
async function codesOf(layer) {
  const planes = await inflated(layer.data);
  const count = planes.length / 2;
  const codes = new Uint16Array(count);
  for (let at = 0; at < count; at += 1) codes[at] = (planes[at] << 8) | planes[count + at];
  return codes;
}

// --- theme ---

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const button = byId("theme");
  const show = () => {
    button.textContent = current() === "dark" ? "light" : "dark";
    dispatchEvent(new Event("themechange"));
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  show();
}

/** The value of a colour of the style sheet, in the theme that is on. */
const themeColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// --- the verdict as Markdown ---

function startCopying(markdown) {
  const button = byId("copy");
  button.hidden = false;
  button.addEventListener("click", async () => {
    const copied = await copyText(markdown);
    button.textContent = copied ? "copied" : "the copy failed";
    setTimeout(() => (button.textContent = "copy as Markdown"), 2000);
  });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { readonly: "", class: "off-screen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

// --- tables: each can be sorted by its heads, and filtered ---

function startTables() {
  for (const table of document.querySelectorAll("table.rows")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => makeSortable(table, head, column));
    if (body.rows.length > 8) addFilter(table, body);
  }
}

function makeSortable(table, head, column) {
  const button = element("button", { type: "button" }, head.textContent);
  head.replaceChildren(button);
  head.setAttribute("aria-sort", "none");
  button.addEventListener("click", () => {
    const falling = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    sortRows(table.tBodies[0], column, falling);
  });
}

/** Numbers by the exact value that the cell carries, else by their text. Rows that are equal keep
 * their order; cells without a value come last. */
function sortRows(body, column, falling) {
  const keyed = [...body.rows].map((row) => [sortKey(row.cells[column]), row]);
  keyed.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const order = typeof a === "number" && typeof b === "number" ? a - b : compareText(a, b);
    return falling ? -order : order;
  });
  body.append(...keyed.map(([, row]) => row));
}

const collator = new Intl.Collator("en", { numeric: true });
const compareText = (a, b) => collator.compare(String(a), String(b));

function sortKey(cell) {
  const given = cell.dataset.value;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? "" : Number(given);
}

function addFilter(table, body) {
  const label = element("label", { class: "filter" }, "filter ");
  const field = element("input", { type: "search", "aria-label": `filter ${table.id}` });
  const count = element("span", { class: "quiet", role: "status" });
  label.append(field);
  table.parentElement.before(label, count);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${body.rows.length}` : "";
  });
}

// --- the heat map ---

/** A canvas of the right number of device pixels, with a context that counts in CSS pixels. */
function fitCanvas(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}

/** The middle one of the recorded codes of a column. Codes rise with the time, so that no cell needs
 * to be decoded for it. counts: of 65,536 zeros, which it leaves as it found them. */
function middleCode(codes, first, stride, rows, counts) {
  let known = 0;
  for (let row = 0, at = first; row < rows; row += 1, at += stride) {
    if (codes[at] !== NO_CELL) {
      counts[known] = codes[at];
      known += 1;
    }
  }
  if (!known) return NO_CELL;
  const sorted = counts.subarray(0, known).sort();
  return sorted[(known - 1) >> 1];
}

class HeatMap {
  constructor(data) {
    this.data = data;
    this.ranks = data.ranks;
    this.steps = data.steps;
    this.canvas = byId("heat");
    this.readout = byId("heat-readout");
    this.layer = null;
    this.order = this.ranks.map((_, row) => row);
    this.cursor = null;
    this.brush = null;
    this.whole();
  }

  async start() {
    byId("heat-section").hidden = false;
    this.fillChoices();
    await this.choose(0);
    this.listen();
  }

  fillChoices() {
    const layers = byId("heat-layer");
    this.data.layers.forEach((layer, at) => {
      layers.append(element("option", { value: at }, layer.name));
    });
    layers.addEventListener("change", () => this.choose(Number(layers.value)));
    const against = byId("heat-against");
    if (this.ranks.length < 2) against.value = "run";
    against.addEventListener("change", () => this.compare());
    byId("heat-order").addEventListener("change", () => this.sort());
    byId("heat-reset").addEventListener("click", () => {
      this.whole();
      this.draw();
    });
  }

  /** Decodes a layer, which is kept: the time of a cell is low * ratio ** (code - 1). */
  async choose(at) {
    const layer = this.data.layers[at];
    layer.codes ??= await codesOf(layer);
    this.layer = layer;
    this.compare();
  }

  /** What each cell is compared with: the median rank of its step, or the run's median of its rank. */
  compare() {
    const { codes } = this.layer;
    const [rows, columns] = [this.ranks.length, this.steps.length];
    const scratch = new Uint16Array(Math.max(rows, columns));
    this.byStep = byId("heat-against").value === "ranks";
    this.middles = this.byStep
      ? Array.from({ length: columns }, (_, s) => middleCode(codes, s, columns, rows, scratch))
      : Array.from({ length: rows }, (_, r) => middleCode(codes, r * columns, 1, columns, scratch));
    this.limit = this.colorLimit();
    this.sort();
  }

  middleOf(row, column) {
    return this.middles[this.byStep ? column : row];
  }

  /** How far in codes the colours reach: all but the farthest thousandth, and 20 % at least. */
  colorLimit() {
    const { codes, ratio } = this.layer;
    const columns = this.steps.length;
    const stride = Math.max(1, Math.floor(codes.length / 200_000));
    const distances = [];
    for (let at = 0; at < codes.length; at += stride) {
      if (codes[at] === NO_CELL) continue;
      distances.push(Math.abs(codes[at] - this.middleOf(Math.floor(at / columns), at % columns)));
    }
    distances.sort((a, b) => a - b);
    const far = distances[Math.floor(0.999 * (distances.length - 1))] ?? 0;
    return Math.max(far, Math.log(1.2) / Math.log(ratio));
  }

  /** The rows by rank, by host, or the rank first that differs most over the whole run. */
  sort() {
    const how = byId("heat-order").value;
    const rows = this.ranks.map((_, row) => row);
    if (how === "host") {
      rows.sort((a, b) => compareText(this.hostOf(a), this.hostOf(b)) || a - b);
    } else if (how === "excess") {
      const excess = rows.map((row) => this.meanExcess(row));
      rows.sort((a, b) => excess[b] - excess[a] || a - b);
    }
    this.order = rows;
    this.draw();
  }

  hostOf(row) {
    return this.data.hosts[this.data.host_of[row]] ?? "";
  }

  meanExcess(row) {
    const columns = this.steps.length;
    let sum = 0;
    for (let column = 0; column < columns; column += 1) {
      const code = this.layer.codes[row * columns + column];
      if (code !== NO_CELL) sum += this.msOf(code) - this.msOf(this.middleOf(row, column));
    }
    return sum;
  }

  msOf(code) {
    return code === NO_CELL ? NaN : this.layer.low_ms * this.layer.ratio ** (code - 1);
  }

  whole() {
    this.view = { top: 0, bottom: this.ranks.length, left: 0, right: this.steps.length };
  }

  get isWhole() {
    const { top, bottom, left, right } = this.view;
    return !top && !left && bottom === this.ranks.length && right === this.steps.length;
  }

  draw() {
    const rows = this.view.bottom - this.view.top;
    const wanted = rows * HEAT_HEIGHT.row;
    const height = Math.min(HEAT_HEIGHT.most, Math.max(HEAT_HEIGHT.least, wanted));
    this.size = fitCanvas(this.canvas, height);
    const { context, width } = this.size;
    context.imageSmoothingEnabled = false;
    context.fillStyle = themeColor("--missing");
    context.fillRect(0, 0, width, height);
    context.drawImage(this.picture(), 0, 0, width, height);
    this.drawCursor(context);
    byId("heat-reset").hidden = this.isWhole;
    this.showAxes();
  }

  /** The cells in view with at most one a device pixel: of several the one farthest from what it is
   * compared with, so that no single rank or step vanishes. */
  picture() {
    const { top, bottom, left, right } = this.view;
    const across = Math.min(right - left, this.canvas.width);
    const down = Math.min(bottom - top, this.canvas.height);
    const farthest = new Int32Array(across * down);
    const seen = new Uint8Array(across * down);
    const columns = this.steps.length;
    for (let at = top; at < bottom; at += 1) {
      const row = this.order[at];
      const line = Math.floor(((at - top) * down) / (bottom - top)) * across;
      for (let column = left; column < right; column += 1) {
        const code = this.layer.codes[row * columns + column];
        if (code === NO_CELL) continue;
        const place = line + Math.floor(((column - left) * across) / (right - left));
        const distance = code - this.middleOf(row, column);
        if (!seen[place] || Math.abs(distance) > Math.abs(farthest[place])) {
          farthest[place] = distance;
          seen[place] = 1;
        }
      }
    }
    return this.painted(farthest, seen, across, down);
  }

  painted(distances, seen, across, down) {
    const picture = new OffscreenCanvas(across, down);
    const context = picture.getContext("2d");
    const image = context.createImageData(across, down);
    const palette = heatPalette();
    const words = new Uint32Array(image.data.buffer);
    for (let at = 0; at < words.length; at += 1) {
      if (!seen[at]) continue; // stays transparent
      const share = Math.max(-1, Math.min(1, distances[at] / this.limit));
      words[at] = palette[Math.round((share + 1) * 0.5 * (palette.length - 1))];
    }
    context.putImageData(image, 0, 0);
    return picture;
  }

  drawCursor(context) {
    const box = this.brush ?? (this.cursor && this.boxOfCell(this.cursor));
    if (!box) return;
    context.strokeStyle = themeColor("--text");
    context.lineWidth = 1.5;
    context.strokeRect(box.x, box.y, Math.max(3, box.width), Math.max(3, box.height));
  }

  boxOfCell({ at, column }) {
    const { top, bottom, left, right } = this.view;
    const width = this.size.width / (right - left);
    const height = this.size.height / (bottom - top);
    return { x: (column - left) * width, y: (at - top) * height, width, height };
  }

  cellAt(x, y) {
    const { top, bottom, left, right } = this.view;
    const column = left + Math.floor((x / this.size.width) * (right - left));
    const at = top + Math.floor((y / this.size.height) * (bottom - top));
    return {
      at: Math.max(top, Math.min(bottom - 1, at)),
      column: Math.max(left, Math.min(right - 1, column)),
    };
  }

  showAxes() {
    const { left, right, top, bottom } = this.view;
    const twoDigits = (value) => Number(value.toPrecision(2)); // without an exponent
    byId("heat-steps").textContent =
      `steps ${this.steps[left]} to ${this.steps[right - 1]} from left to right, ` +
      `${bottom - top} of ${this.ranks.length} ranks from top to bottom`;
    byId("heat-scale").textContent =
      `blue: at most ${twoDigits(this.layer.ratio ** -this.limit)} times the median, ` +
      `red: at least ${twoDigits(this.layer.ratio ** this.limit)} times the median`;
  }

  /** What the cell under the cursor is, also for a screen reader. */
  tell() {
    if (!this.cursor) return;
    const row = this.order[this.cursor.at];
    const code = this.layer.codes[row * this.steps.length + this.cursor.column];
    const middle = this.msOf(this.middleOf(row, this.cursor.column));
    const host = this.hostOf(row);
    this.readout.textContent =
      `rank ${this.ranks[row]}${host ? ` on ${host}` : ""}, ` +
      `step ${this.steps[this.cursor.column]}: ${timeText(this.msOf(code))} ` +
      `(median ${timeText(middle)})`;
  }

  moveTo(cell) {
    this.cursor = cell;
    this.tell();
    this.draw();
  }

  /** Keeps the view that is asked for within the run, with a cell at least. */
  zoomTo(left, right, top, bottom) {
    const within = (low, high, count) => {
      const size = Math.min(count, Math.max(1, Math.round(high - low)));
      const start = Math.max(0, Math.min(count - size, Math.round(low)));
      return [start, start + size];
    };
    const view = this.view;
    [view.left, view.right] = within(left, right, this.steps.length);
    [view.top, view.bottom] = within(top, bottom, this.ranks.length);
    if (this.cursor) {
      this.cursor.column = Math.max(view.left, Math.min(view.right - 1, this.cursor.column));
      this.cursor.at = Math.max(view.top, Math.min(view.bottom - 1, this.cursor.at));
    }
    this.draw();
  }

  zoomAround({ at, column }, factor) {
    const { left, right, top, bottom } = this.view;
    this.zoomTo(
      column - (column - left) * factor,
      column + (right - column) * factor,
      at - (at - top) * factor,
      at + (bottom - at) * factor,
    );
  }

  listen() {
    const canvas = this.canvas;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      start = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (start && Math.hypot(x - start[0], y - start[1]) > 4) this.brush = boxOf(start, [x, y]);
      this.moveTo(this.cellAt(x, y));
    });
    canvas.addEventListener("pointerup", () => {
      start = null;
      if (!this.brush) return;
      const { x, y, width, height } = this.brush;
      this.brush = null;
      const from = this.cellAt(x, y);
      const to = this.cellAt(x + width, y + height);
      this.zoomTo(from.column, to.column + 1, from.at, to.at + 1);
    });
    canvas.addEventListener("dblclick", () => byId("heat-reset").click());
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // else the page could not be scrolled
        event.preventDefault();
        this.zoomAround(this.cellAt(...place(event)), event.deltaY > 0 ? 1.25 : 0.8);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    addEventListener("resize", () => this.draw());
    addEventListener("themechange", () => this.draw());
  }

  onKey(event) {
    const { left, top } = this.view;
    const cell = { ...(this.cursor ?? { at: top, column: left }) };
    const far = event.shiftKey ? 10 : 1;
    switch (event.key) {
      case "ArrowLeft": cell.column -= far; break;
      case "ArrowRight": cell.column += far; break;
      case "ArrowUp": cell.at -= far; break;
      case "ArrowDown": cell.at += far; break;
      case "+": this.zoomAround(cell, 0.5); break;
      case "-": this.zoomAround(cell, 2); break;
      case "0": byId("heat-reset").click(); break;
      default: return;
    }
    event.preventDefault();
    this.scrollTo(cell);
    this.moveTo(cell);
  }

  /** Moves the view until the cell is in it, and the cell to where the run ends. */
  scrollTo(cell) {
    cell.column = Math.max(0, Math.min(this.steps.length - 1, cell.column));
    cell.at = Math.max(0, Math.min(this.ranks.length - 1, cell.at));
    const { left, right, top, bottom } = this.view;
    const shift = (place, low, high) => Math.min(0, place - low) + Math.max(0, place - high + 1);
    const across = shift(cell.column, left, right);
    const down = shift(cell.at, top, bottom);
    if (across || down) this.zoomTo(left + across, right + across, top + down, bottom + down);
  }
}

function boxOf([x, y], [toX, toY]) {
  return {
    x: Math.min(x, toX),
    y: Math.min(y, toY),
    width: Math.abs(toX - x),
    height: Math.abs(toY - y),
  };
}

/** From blue over the page's ground to red, which the colour-blind can tell apart; as the 32-bit
 * words of an image. */
function heatPalette() {
  const parse = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [low, middle, high] = ["--heat-low", "--heat-middle", "--heat-high"].map((name) =>
    parse(themeColor(name)),
  );
  const mix = (from, to, share) => from.map((one, at) => Math.round(one + (to[at] - one) * share));
  return Uint32Array.from({ length: 255 }, (_, at) => {
    const share = at / 127 - 1;
    const [red, green, blue] = share < 0 ? mix(middle, low, -share) : mix(middle, high, share);
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
}

// --- the timeline of the worst step ---

/** The name within its box, where there is room for some of it. */
function drawLabel(context, name, color, { x, y, width }, height) {
  if (width < SMALLEST_LABEL) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width - 3, height);
  context.clip();
  context.fillStyle = color;
  context.fillText(name, x + 4, y + height / 2 - 1);
  context.restore();
}

class Timeline {
  constructor(data, colors) {
    this.data = data;
    this.colors = colors;
    this.canvas = byId("timeline");
    this.readout = byId("timeline-readout");
    this.rows = this.layOut();
    this.slices = [];
    this.cursor = null;
  }

  start() {
    byId("timeline-section").hidden = false;
    this.draw();
    addEventListener("resize", () => this.draw());
    addEventListener("themechange", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.pick(this.sliceAt(event.clientX - box.left, event.clientY - box.top));
    });
    this.canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const at = this.cursor === null ? 0 : this.cursor + move;
      this.pick(Math.max(0, Math.min(this.slices.length - 1, at)));
    });
  }

  /** Of each rank where its rows begin: a row for each depth of its stages. */
  layOut() {
    let y = TIMELINE.axis;
    return this.data.ranks.map((rank) => {
      const depth = 1 + Math.max(0, ...rank.spans.map((span) => span[1]));
      const row = { rank, y };
      y += depth * TIMELINE.row + TIMELINE.gap;
      this.height = y;
      return row;
    });
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas, this.height);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.scale = (width - TIMELINE.label - 8) / this.data.length_ms;
    this.drawAxis(context, width, height);
    this.slices = [];
    for (const { rank, y } of this.rows) {
      context.fillStyle = themeColor("--text");
      context.fillText(rank.name, 0, y + TIMELINE.row / 2);
      for (const span of rank.spans) this.drawSpan(context, rank.name, y, span);
    }
    const chosen = this.slices[this.cursor];
    if (chosen) {
      context.strokeStyle = themeColor("--text");
      context.lineWidth = 2;
      context.strokeRect(chosen.x, chosen.y, chosen.width, TIMELINE.row - 2);
    }
  }

  drawAxis(context, width, height) {
    context.strokeStyle = themeColor("--line");
    context.fillStyle = themeColor("--quiet");
    for (const tick of roundTicks(0, this.data.length_ms, 8)) {
      const x = TIMELINE.label + tick * this.scale;
      context.fillRect(x, TIMELINE.axis - 4, 1, height);
      const text = timeText(tick);
      if (x + 3 + context.measureText(text).width > width) break;
      context.fillText(text, x + 3, TIMELINE.axis / 2);
    }
  }

  drawSpan(context, lane, top, [stage, depth, begin, length]) {
    const name = this.data.stages[stage];
    const slice = {
      name, lane, begin, length,
      x: TIMELINE.label + begin * this.scale,
      y: top + depth * TIMELINE.row,
      width: Math.max(1, length * this.scale),
    }; // prettier-ignore
    this.slices.push(slice);
    const [ground, text] = this.colors[name] ?? ["#767676", "#ffffff"];
    context.fillStyle = ground;
    context.fillRect(slice.x, slice.y, slice.width, TIMELINE.row - 2);
    drawLabel(context, name, text, slice, TIMELINE.row);
  }

  sliceAt(x, y) {
    const at = this.slices.findLastIndex(
      (slice) =>
        x >= slice.x && x <= slice.x + slice.width && y >= slice.y && y < slice.y + TIMELINE.row,
    );
    return at < 0 ? null : at;
  }

  pick(at) {
    this.cursor = at;
    const slice = this.slices[at];
    this.readout.textContent = slice
      ? `${slice.lane}, ${slice.name}: ${timeText(slice.length)}, ` +
        `begins ${timeText(slice.begin)} after the start of the step`
      : "";
    this.draw();
  }
}

// --- the flame graphs of stages ---

const percentText = (share) => `${Number((100 * share).toPrecision(2))} %`;

/** The functions of a stage as boxes below their callers, for one rank or for all of them. */
class FlameGraph {
  constructor(data) {
    this.data = data;
    this.canvas = byId("flame");
    this.readout = byId("flame-readout");
    this.boxes = [];
  }

  start() {
    byId("flame-drawn").hidden = false;
    const [stages, ranks] = [byId("flame-stage"), byId("flame-rank")];
    this.data.stages.forEach((stage, at) => stages.append(element("option", { value: at }, stage.name)));
    ranks.append(element("option", { value: -1 }, "all ranks"));
    this.data.ranks.forEach((rank, at) => ranks.append(element("option", { value: at }, `rank ${rank}`)));
    for (const choice of [stages, ranks]) choice.addEventListener("change", () => this.choose());
    byId("flame-reset").addEventListener("click", () => this.zoom(-1));
    this.listen();
    this.choose();
  }

  choose() {
    this.stage = this.data.stages[Number(byId("flame-stage").value)];
    this.rank = Number(byId("flame-rank").value);
    this.nodes = this.stage.nodes.map(([name, parent, count, counts, usual], at) => ({
      at, parent, count, counts, usual, name: this.data.names[name], below: [],
    })); // prettier-ignore
    for (const node of this.nodes) this.nodes[node.parent]?.below.push(node);
    this.zoom(-1);
  }

  /** Shows a function alone; -1 is the whole stage. */
  zoom(at) {
    this.root = at;
    this.cursor = null;
    this.readout.textContent = this.total ? "" : "this rank has no sample in the stage";
    byId("flame-reset").hidden = at < 0;
    this.draw();
  }

  countOf(node) {
    return this.rank < 0 ? node.count : node.counts[this.rank];
  }

  get total() {
    return this.rank < 0 ? this.stage.samples : this.stage.of_rank[this.rank];
  }

  /** How much more of the stage a rank spends in a function than the others: of the chosen one, or
   * of the one that stands out most. */
  excessOf(node) {
    const one = (at) => {
      const samples = this.stage.of_rank[at];
      return samples ? node.counts[at] / samples - node.usual[at] / 1000 : 0;
    };
    if (this.rank >= 0) return one(this.rank);
    return node.counts.reduce((most, _, at) => Math.max(most, one(at)), 0);
  }

  draw() {
    this.boxes = this.layOut();
    const depth = Math.max(0, ...this.boxes.map((box) => box.depth));
    const { context, width } = fitCanvas(this.canvas, FLAME.top + (depth + 1) * FLAME.row);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const palette = flamePalette();
    context.strokeStyle = themeColor("--edge");
    for (const box of this.boxes) {
      box.x = box.left * width;
      box.y = FLAME.top + box.depth * FLAME.row;
      box.width = box.share * width;
      const [ground, text] = palette(this.excessOf(box.node));
      context.fillStyle = ground;
      context.fillRect(box.x, box.y, box.width, FLAME.row - 1);
      context.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(0.5, box.width - 1), FLAME.row - 2);
      drawLabel(context, box.node.name, text, box, FLAME.row);
    }
    const chosen = this.boxes[this.cursor];
    if (chosen) {
      context.strokeStyle = themeColor("--text");
      context.lineWidth = 2;
      context.strokeRect(chosen.x + 1, chosen.y, Math.max(2, chosen.width - 2), FLAME.row - 1);
    }
  }

  /** The boxes in view, callers first, the widest of each caller first. left, share: of the width. */
  layOut() {
    const boxes = [];
    const whole = this.root < 0 ? this.total : this.countOf(this.nodes[this.root]);
    const place = (nodes, left, depth, caller) => {
      const order = [...nodes].sort((a, b) => this.countOf(b) - this.countOf(a) || a.at - b.at);
      for (const node of order) {
        const share = this.countOf(node) / whole;
        if (!(share > 0)) continue;
        const own = boxes.push({ node, left, depth, share, caller }) - 1;
        place(node.below, left, depth + 1, own);
        left += share;
      }
    };
    const roots = this.root < 0 ? this.nodes.filter((node) => node.parent < 0) : [this.nodes[this.root]];
    place(roots, 0, 0, null);
    return boxes;
  }

  tell({ node }) {
    const { ranks } = this.data;
    const share = percentText(this.countOf(node) / this.total);
    const others = (at) =>
      ranks.length > 1 ? `, the others ${percentText(node.usual[at] / 1000)}` : "";
    if (this.rank >= 0) {
      return `${node.name}: ${share} of ${this.stage.name} on rank ${ranks[this.rank]}${others(this.rank)}`;
    }
    const shares = node.counts.map((count, at) => count / (this.stage.of_rank[at] || Infinity));
    const most = shares.indexOf(Math.max(...shares));
    return (
      `${node.name}: ${share} of ${this.stage.name}; on rank ${ranks[most]} ` +
      `${percentText(shares[most])}${others(most)}`
    );
  }

  pick(at) {
    this.cursor = at;
    this.readout.textContent = at === null ? "" : this.tell(this.boxes[at]);
    this.draw();
  }

  listen() {
    const boxAt = (event) => {
      const { left, top } = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      const at = this.boxes.findIndex(
        (box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + FLAME.row,
      );
      return at < 0 ? null : at;
    };
    this.canvas.addEventListener("pointermove", (event) => this.pick(boxAt(event)));
    this.canvas.addEventListener("click", (event) => this.zoomTo(boxAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    addEventListener("resize", () => this.draw());
    addEventListener("themechange", () => this.draw());
  }

  zoomTo(at) {
    if (at !== null) this.zoom(this.boxes[at].node.at);
  }

  onKey(event) {
    const here = this.boxes[this.cursor];
    const beside = (step) => {
      const row = this.boxes.map((_, at) => at).filter((at) => this.boxes[at].depth === here.depth);
      row.sort((a, b) => this.boxes[a].left - this.boxes[b].left);
      return row[row.indexOf(this.cursor) + step];
    };
    const below = () => this.boxes.findIndex((box) => box.caller === this.cursor);
    const moves = {
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      ArrowUp: () => here.caller,
      ArrowDown: below,
    };
    if (event.key === "0") this.zoom(-1);
    else if (event.key === "Enter") this.zoomTo(this.cursor);
    else if (!(event.key in moves)) return;
    else if (!here) this.pick(this.boxes.length ? 0 : null);
    else if (this.boxes[moves[event.key]()]) this.pick(moves[event.key]());
    event.preventDefault();
  }
}

/** A colour and that of the text on it, by how much more than the others. */
function flamePalette() {
  const palette = [...heatPalette()].map((word) => [word & 255, (word >> 8) & 255, (word >> 16) & 255]);
  return (excess) => {
    const share = Math.max(-1, Math.min(1, excess / FLAME.full));
    const [red, green, blue] = palette[Math.round((share + 1) * 0.5 * (palette.length - 1))];
    return [`rgb(${red} ${green} ${blue})`, textOn(red, green, blue)];
  };
}

/** Black or white, whichever has the larger contrast, as WCAG 2.1 measures it. */
function textOn(...parts) {
  const [red, green, blue] = parts.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (light + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
}

// --- Perfetto ---

/** Hands the trace in the page to Perfetto's window, by its protocol: PING until it says PONG. Where
 * it does not, the trace is offered as a file. Nothing leaves this machine. */
function startPerfetto(trace) {
  const button = byId("perfetto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const target = window.open(trace.viewer); // within the click, and with an opener
    void handOver(trace, target);
  });
}

async function handOver(trace, target) {
  const status = byId("perfetto-status");
  const buffer = (await inflated(trace.data)).buffer;
  if (!target) return offerFile(trace, buffer, "The browser opened no window");
  const { origin } = new URL(trace.viewer);
  status.textContent = "Waiting for Perfetto. It may ask you once whether it may open the trace.";
  const answered = await isReady(target, origin);
  if (!answered) return offerFile(trace, buffer, "Perfetto did not answer");
  target.postMessage({ perfetto: { buffer, title: trace.title, fileName: trace.name } }, origin);
  status.textContent = "Perfetto has the trace.";
}

function isReady(target, origin) {
  return new Promise((resolve) => {
    const finish = (ready) => {
      clearInterval(pings);
      clearTimeout(end);
      removeEventListener("message", onMessage);
      resolve(ready);
    };
    const onMessage = (event) => {
      if (event.source === target && event.origin === origin && event.data === "PONG") finish(true);
    };
    const pings = setInterval(() => target.postMessage("PING", origin), PERFETTO_PING_MS);
    const end = setTimeout(() => finish(false), PERFETTO_GIVE_UP_MS);
    addEventListener("message", onMessage);
  });
}

function offerFile(trace, buffer, reason) {
  const link = element("a", { download: trace.name }, trace.name);
  link.href = URL.createObjectURL(new Blob([buffer]));
  byId("perfetto-status").replaceChildren(`${reason}. Save this file, and open it at ${trace.viewer}: `, link);
}

// --- all of it, each part for itself: one that fails leaves the others ---

async function start() {
  const data = JSON.parse(byId("data").textContent);
  const parts = [
    () => startTheme(),
    () => startCopying(data.markdown),
    () => startTables(),
    () => data.heat && new HeatMap(data.heat).start(),
    () => data.timeline && new Timeline(data.timeline, data.colors).start(),
    () => data.flames && new FlameGraph(data.flames).start(),
    () => data.trace && startPerfetto(data.trace),
  ];
  for (const part of parts) {
    try {
      await part();
    } catch (error) {
      console.error(error);
    }
  }
  document.documentElement.dataset.drawn = "all";
}

requestAnimationFrame(() => setTimeout(start)); // behind the first paint
