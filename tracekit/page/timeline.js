// What a reader does with the timeline: choose a step, zoom, pan, look at rows with the pointer or the keyboard, find.

const MOST_HEIGHT = 600; // of the canvas; what is below is reached by dragging
const SLACK = 4; // pixels around a row that count as on it
const LEAST_DUR = 200; // ns in view

class Timeline {
  constructor(box) {
    this.box = box;
    this.canvas = document.getElementById("timeline-canvas");
    this.tip = document.getElementById("timeline-tip");
    this.facts = document.getElementById("timeline-facts");
    this.range = document.getElementById("timeline-range");
    const data = JSON.parse(document.getElementById("timeline-data").textContent);
    this.data = data;
    this.views = new Array(data.windows.length).fill(null);
    this.painter = new Painter(this.canvas, data.fills);
    this.pointers = new Map();
    this.waiting = false;
    this.choose(0);
    this.listen();
  }

  /** Look at one of the windows. */
  choose(at) {
    this.views[at] ??= readWindow(this.data.windows[at], this.data.names);
    const view = this.views[at];
    const height = Math.max(120, Math.min(MOST_HEIGHT, view.height));
    this.state = { view, from: 0, to: view.dur, top: 0, height, hovered: null, focused: null };
    this.canvas.style.height = `${height}px`;
    this.facts.textContent = "";
    this.hideTip();
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paintNow();
    });
  }

  paintNow() {
    if (this.canvas.clientWidth === 0) return;
    const { from, to, view } = this.state;
    this.painter.paint(this.state);
    this.box.dataset.start = String(Math.round(from));
    this.box.dataset.end = String(Math.round(to));
    this.range.textContent = `${durationText(to - from)} of ${durationText(view.dur)}, from ${durationText(from)}`;
  }

  // ---- where to look ----

  /** Show [from, to), within the window, and not less than can be told apart. */
  show(from, to) {
    const { view } = this.state;
    const dur = Math.min(view.dur, Math.max(LEAST_DUR, to - from));
    const start = Math.max(0, Math.min(view.dur - dur, from));
    Object.assign(this.state, { from: start, to: start + dur });
    this.redraw();
  }

  /** factor below 1: nearer. at: the share of the width that stays where it is. */
  zoom(factor, at = 0.5) {
    const { from, to, view } = this.state;
    const dur = Math.min(view.dur, Math.max(LEAST_DUR, (to - from) * factor));
    const fixed = from + (to - from) * at;
    this.show(fixed - dur * at, fixed + dur * (1 - at));
  }

  /** By a share of what is in view. */
  pan(share) {
    const { from, to } = this.state;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }

  showAll() {
    this.state.top = 0;
    this.show(0, this.state.view.dur);
  }

  scroll(pixels) {
    const { view, height } = this.state;
    this.state.top = Math.max(0, Math.min(view.height - height, this.state.top + pixels));
    this.redraw();
  }

  // ---- rows ----

  /** The row under a point of the canvas, or null. */
  rowUnder(x, y) {
    if (y < AXIS) return null;
    const { view, from, to, top } = this.state;
    const lane = view.lanes.find((one) => y + top >= one.top && y + top < one.top + one.height);
    if (!lane) return null;
    const depth = Math.floor((y + top - lane.top - LANE_TITLE) / lane.rowHeight);
    if (depth < 0 || depth >= lane.depths) return null;
    const perPixel = (to - from) / this.canvas.clientWidth;
    return rowAt(lane, depth, from + x * perPixel, SLACK * perPixel);
  }

  /** The keyboard is at this row now: say what it is, and bring it into view. */
  focus(at) {
    if (!at) return;
    this.state.focused = at;
    const { name, facts } = factsOf(this.state.view, at);
    this.facts.textContent = `${name}. ${facts.map(([key, value]) => `${key}: ${value}`).join("; ")}.`;
    const { from, to, height, top } = this.state;
    const start = at.lane.start[at.row];
    const end = start + at.lane.dur[at.row];
    if (end < from || start > to) this.show(start - (to - from) / 2, start + (to - from) / 2);
    const y = at.lane.top + LANE_TITLE + at.lane.depth[at.row] * at.lane.rowHeight;
    if (y < top + AXIS) this.scroll(y - top - AXIS - LANE_TITLE);
    else if (y + at.lane.rowHeight > top + height) this.scroll(y + at.lane.rowHeight - top - height + LANE_GAP);
    this.redraw();
  }

  /** The next row of the lane, or the one before; without any the first in view. */
  step(by) {
    const at = this.state.focused;
    if (!at) return this.focus(nearestRow(this.state.view.lanes[0], this.inView(this.state.from)));
    const row = at.row + by;
    if (row >= 0 && row < at.lane.count) this.focus({ lane: at.lane, row });
    return undefined;
  }

  /** The lane above or below, at about the same time. */
  changeLane(by) {
    const { view, focused } = this.state;
    if (!focused) return this.step(1);
    const lane = view.lanes[view.lanes.indexOf(focused.lane) + by];
    if (!lane) return undefined;
    return this.focus(nearestRow(lane, this.inView(focused.lane.start[focused.row])));
  }

  /** A time, or the nearest that can be seen: the edges themselves belong to neighbours. */
  inView(time) {
    const { from, to } = this.state;
    return Math.max(from + (to - from) * 0.02, Math.min(to - (to - from) * 0.02, time));
  }

  /** The next row after the focused one, by time, whose name holds a text. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return;
    const { view, focused } = this.state;
    const has = this.data.names.map((name) => name.toLowerCase().includes(wanted));
    const hits = [];
    view.lanes.forEach((lane, place) => {
      for (let row = 0; row < lane.count; row++) if (has[lane.name_at[row]]) hits.push({ lane, row, place });
    });
    hits.sort((one, other) => one.lane.start[one.row] - other.lane.start[other.row] || one.place - other.place);
    const now = hits.findIndex((one) => one.lane === focused?.lane && one.row === focused?.row);
    const after = focused ? hits.findIndex((one) => one.lane.start[one.row] > focused.lane.start[focused.row]) : 0;
    const next = now >= 0 ? hits[now + 1] : hits[after];
    const found = next ?? hits[0];
    if (!found) {
      this.facts.textContent = "No row in this window has a name like that.";
      return;
    }
    this.focus(found);
    this.facts.textContent = `${hits.indexOf(found) + 1} of ${hits.length}: ${this.facts.textContent}`;
  }

  // ---- the pointer ----

  hover(x, y) {
    const at = this.rowUnder(x, y);
    const { hovered } = this.state;
    if (at?.lane !== hovered?.lane || at?.row !== hovered?.row) {
      this.state.hovered = at;
      this.redraw();
    }
    if (at) this.showTip(at, x, y);
    else this.hideTip();
  }

  showTip(at, x, y) {
    const { name, facts } = factsOf(this.state.view, at);
    const title = document.createElement("b");
    title.textContent = name;
    const lines = facts.map(([key, value]) => {
      const line = document.createElement("div");
      line.textContent = `${key}: ${value}`;
      return line;
    });
    this.tip.replaceChildren(title, ...lines);
    this.tip.hidden = false;
    const width = this.tip.offsetWidth;
    const left = x + 14 + width > this.canvas.clientWidth ? Math.max(4, x - 14 - width) : x + 14;
    Object.assign(this.tip.style, { left: `${left}px`, top: `${y + 16}px` }); // below, or it would hide what is near
  }

  hideTip() {
    this.tip.hidden = true;
    if (this.state?.hovered) {
      this.state.hovered = null;
      this.redraw();
    }
  }

  onWheel(event) {
    const { from, to, view } = this.state;
    if (event.shiftKey) this.scroll(event.deltaY || event.deltaX);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.canvas.clientWidth);
    else if (event.deltaY > 0 && to - from >= view.dur) return; // all is in view: let the page scroll on
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), event.offsetX / this.canvas.clientWidth);
    event.preventDefault();
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.hover(event.offsetX, event.offsetY);
    const now = { x: event.offsetX, y: event.offsetY };
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.pointers.set(event.pointerId, now);
    const width = this.canvas.clientWidth;
    if (others.length) {
      const [was, is] = [before, now].map((at) => Math.max(10, Math.abs(at.x - others[0].x)));
      this.zoom(was / is, (now.x + others[0].x) / 2 / width);
    } else {
      this.pan((before.x - now.x) / width);
      if (event.pointerType === "mouse") this.scroll(before.y - now.y);
    }
    return undefined;
  }

  onDown(event) {
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragged");
    this.pressed = { x: event.offsetX, y: event.offsetY };
    this.hideTip();
  }

  onUp(event) {
    this.pointers.delete(event.pointerId);
    this.canvas.classList.remove("dragged");
    const moved = this.pressed ? Math.hypot(event.offsetX - this.pressed.x, event.offsetY - this.pressed.y) : 99;
    if (event.type === "pointerup" && moved < 4) this.focus(this.rowUnder(event.offsetX, event.offsetY));
  }

  // ---- the keyboard ----

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.2),
      ArrowRight: () => this.pan(0.2),
      ArrowUp: () => this.changeLane(-1),
      ArrowDown: () => this.changeLane(1),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.showAll(),
      Home: () => this.showAll(),
      "[": () => this.step(-1),
      "]": () => this.step(1),
      f: () => document.getElementById("timeline-find").focus(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.onUp(event));
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("dblclick", () => this.showAll());
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    const actions = { in: () => this.zoom(0.6), out: () => this.zoom(1 / 0.6), all: () => this.showAll() };
    for (const button of this.box.querySelectorAll("button[data-action]")) {
      button.addEventListener("click", actions[button.dataset.action]);
    }
    document.getElementById("timeline-choice").addEventListener("change", (event) => this.choose(Number(event.target.value)));
    const field = document.getElementById("timeline-find");
    field.addEventListener("keydown", (event) => event.key === "Enter" && this.find(field.value));
    new ResizeObserver(() => this.redraw()).observe(canvas);
    document.addEventListener("themechange", () => {
      this.painter.restyle();
      this.paintNow(); // at once: a page that is printed does not wait for a frame
    });
  }
}

const timelineBox = document.getElementById("timeline-view");
if (timelineBox) new Timeline(timelineBox);
