// How the timeline is painted: lanes of bars on a canvas, in the colours of the page, sharp on every screen.

const FONT = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const TITLE_FONT = "11px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const LETTER = 6.7; // pixels of a letter of FONT, rather too wide
const MOST_LINES = 200; // from a launch to its work

/** Colours of the page as it is now: light, dark or on paper. */
function pageColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = Object.fromEntries(["ground", "panel", "text", "muted", "line", "strong", "accent"].map((one) => [one, read(one)]));
  probe.remove();
  return colours;
}

/** Black or white, whichever is read more easily on a colour. */
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111111" : "#ffffff";
}

/** A fill for the canvas: a colour, or a pattern of the hatch over it. */
function makePaint(context, [colour, hatch, line], ratio) {
  if (!hatch) return { fill: colour, ink: inkOn(colour) };
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8 * ratio;
  const on = tile.getContext("2d");
  on.scale(ratio, ratio);
  on.fillStyle = colour;
  on.fillRect(0, 0, 8, 8);
  on.strokeStyle = on.fillStyle = line;
  on.lineWidth = 1.2;
  const path = new Path2D(hatch);
  on.stroke(path);
  const fill = context.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix().scale(1 / ratio));
  return { fill, ink: null }; // words on a hatch cannot be read
}

/** Round steps of time, some six of them in a window. */
function tickStep(dur, width) {
  const rough = dur / Math.max(2, width / 130);
  const scale = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * scale).find((one) => one >= rough) ?? rough;
}

class Painter {
  constructor(canvas, fills) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.fills = fills;
    this.restyle();
  }

  /** After a change of theme or of the screen. */
  restyle() {
    this.ratio = Math.max(1, window.devicePixelRatio || 1);
    this.colours = pageColours();
    this.paints = new Map(
      Object.entries(this.fills).map(([key, fill]) => [key, makePaint(this.context, fill, Math.ceil(this.ratio))]),
    );
  }

  /** state: view, from, to (ns), top (pixels), height, hovered, focused. */
  paint(state) {
    const { canvas, context, ratio } = this;
    const width = canvas.clientWidth;
    const [across, down] = [Math.round(width * ratio), Math.round(state.height * ratio)];
    if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.colours.ground;
    context.fillRect(0, 0, width, state.height);
    this.width = width;
    this.state = state;
    this.scale = width / (state.to - state.from);
    this.paintGrid();
    for (const lane of state.view.lanes) this.paintLane(lane);
    const marked = [state.focused, state.hovered].filter(Boolean);
    for (const at of marked) this.paintLinks(at);
    for (const at of marked) this.paintMark(at);
    this.paintAxis();
    this.paintThumb();
  }

  x(time) {
    return (time - this.state.from) * this.scale;
  }

  *ticks() {
    const { from, to } = this.state;
    const step = tickStep(to - from, this.width);
    for (let time = Math.ceil(from / step) * step; time < to; time += step) yield time;
  }

  paintGrid() {
    this.context.fillStyle = this.colours.line;
    for (const time of this.ticks()) this.context.fillRect(Math.round(this.x(time)), AXIS, 1, this.state.height);
  }

  /** Last, so that lanes slide beneath it. */
  paintAxis() {
    const { context, colours, state } = this;
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, this.width, AXIS - 2);
    context.fillStyle = colours.strong;
    context.fillRect(0, AXIS - 2, this.width, 1);
    context.fillStyle = colours.muted;
    context.font = TITLE_FONT;
    context.textBaseline = "middle";
    const step = tickStep(state.to - state.from, this.width);
    const [unit, scale] = step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["us", 1e3] : ["ns", 1];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    for (const time of this.ticks()) {
      const words = `${(time / scale).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
      const x = Math.round(this.x(time)) + 4;
      if (x + context.measureText(words).width < this.width) context.fillText(words, x, AXIS / 2);
    }
  }

  /** How far down the lanes are, where not all have room. */
  paintThumb() {
    const { view, height, top } = this.state;
    if (view.height <= height) return;
    const room = height - AXIS;
    this.context.fillStyle = this.colours.strong;
    this.context.fillRect(this.width - 5, AXIS + (top / view.height) * room, 4, (height / view.height) * room);
  }

  paintLane(lane) {
    const { context, colours, state } = this;
    const top = lane.top - state.top;
    if (top > state.height || top + lane.height < AXIS) return;
    context.font = TITLE_FONT;
    context.textBaseline = "middle";
    context.fillStyle = colours.muted;
    context.fillText(lane.name, 4, top + LANE_TITLE / 2 + 1);
    context.font = FONT;
    const [first, end] = rowsWithin(lane, state.from, state.to);
    const drawnTo = new Array(lane.depths).fill(-Infinity);
    for (let row = first; row < end; row++) {
      const left = this.x(lane.start[row]);
      const right = this.x(lane.start[row] + lane.dur[row]);
      const depth = lane.depth[row];
      if (right < 0 || right < drawnTo[depth]) continue; // within the pixel of the row before
      drawnTo[depth] = this.paintRow(lane, row, left, right, top);
    }
  }

  /** Returns the pixel up to which nothing more can be seen. */
  paintRow(lane, row, left, right, laneTop) {
    const { context } = this;
    const start = Math.max(left, -2);
    const width = Math.max(1, Math.min(right, this.width + 2) - start);
    const y = this.rowTop(lane, row, laneTop);
    const { fill, ink } = this.paintOf(lane, row);
    context.fillStyle = fill;
    context.fillRect(start, y, width > 3 ? width - 0.6 : width, lane.rowHeight - 1);
    if (lane.kind === "idle" && width > 3) {
      context.strokeStyle = this.colours.strong;
      context.lineWidth = 0.6;
      context.strokeRect(start + 0.3, y + 0.3, width - 0.9, lane.rowHeight - 1.6);
    }
    if (ink && width > 26) {
      const name = shortName(lane.kind, lane.names[lane.name_at[row]]);
      const room = Math.floor((width - 6) / LETTER);
      context.fillStyle = ink;
      context.fillText(name.length > room ? `${name.slice(0, room - 1)}\u2026` : name, start + 3, y + lane.rowHeight / 2);
    }
    return Math.max(right, start + 1);
  }

  rowTop(lane, row, laneTop) {
    return laneTop + LANE_TITLE + lane.depth[row] * lane.rowHeight;
  }

  paintOf(lane, row) {
    const paint = this.paints.get(`${lane.kind}:${lane.names[lane.label_at[row]]}`);
    if (paint) return paint;
    const host = { step: "#5b6b7d", launch: "#8f6a3f", annotation: "#4f7a6a", op: "#b9c9de", python: "#d9d2c0" };
    const colour = host[lane.kind] ?? "#7f7f7f";
    return { fill: colour, ink: inkOn(colour) };
  }

  // ---- what the pointer or the keyboard is at ----

  /** Where a row is on the canvas, to its middle. */
  placeOf({ lane, row }) {
    const y = this.rowTop(lane, row, lane.top - this.state.top) + lane.rowHeight / 2;
    return { left: this.x(lane.start[row]), right: this.x(lane.start[row] + lane.dur[row]), y };
  }

  paintMark(at) {
    const { context } = this;
    const { left, right, y } = this.placeOf(at);
    const height = at.lane.rowHeight;
    context.strokeStyle = this.colours.text;
    context.lineWidth = 2;
    context.strokeRect(left - 1, y - height / 2 - 1, Math.max(2, right - left) + 1, height);
  }

  /** From a launch to its work: of a row to its launch, of a launch to all that it started. */
  paintLinks(at) {
    const launch = at.lane.kind === "launch" ? this.state.view.launches.get(at.lane.id[at.row]) : launchOf(this.state.view, at);
    if (!launch) return;
    const targets = at.lane.kind === "launch" ? launch.started.slice(0, MOST_LINES) : [at];
    const from = this.placeOf(launch);
    const { context } = this;
    context.strokeStyle = this.colours.accent;
    context.lineWidth = 1.3;
    context.beginPath();
    for (const target of targets) {
      const to = this.placeOf(target);
      const bend = Math.max(12, Math.abs(to.left - from.left) / 2);
      context.moveTo(from.left, from.y);
      context.bezierCurveTo(from.left + bend, from.y, to.left - bend, to.y, to.left, to.y);
    }
    context.stroke();
    this.paintMark(launch);
  }
}
