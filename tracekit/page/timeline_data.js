// The rows of the timeline: from the compact columns that html_timeline.py writes to arrays, and what lies where.

const HEIGHTS = { step: 18, idle: 14, device: 20, launch: 13, annotation: 14, op: 14, python: 13 };
const LANE_TITLE = 14; // pixels above the rows of a lane
const LANE_GAP = 7;
const AXIS = 24;

/** A column as an array: one value stands for all. */
function column(values, count) {
  return Array.isArray(values) ? values : new Array(count).fill(values);
}

/** Running sums of differences. */
function summed(differences) {
  let at = 0;
  return differences.map((one) => (at += one));
}

/** The short form of a name, to stand in a bar: a function without what is around it. */
function shortName(kind, name) {
  if (kind === "python") return name.replace(/^.*\(\d+\): /, "");
  if (kind === "op") return name.split("::").pop() || name;
  if (kind !== "device") return name;
  const plain = name.replace(/^void /, "").split(/[<(]/)[0];
  return plain.split("::").pop() || name;
}

/** One lane: arrays of its rows, its place on the canvas (top, height), and its longest row for searching. */
function readLane(lane, names) {
  const count = lane.count;
  const depth = column(lane.p, count);
  const read = {
    name: lane.name,
    kind: lane.kind,
    count,
    start: summed(lane.t),
    dur: column(lane.d, count),
    name_at: column(lane.n, count),
    label_at: column(lane.l, count),
    depth,
    step: column(lane.s, count),
    id: summed(lane.i),
    launch: column(lane.u, count),
    rowHeight: HEIGHTS[lane.kind] ?? 14,
    depths: 1 + depth.reduce((most, one) => Math.max(most, one), 0),
    names,
    top: 0,
  };
  read.longest = read.dur.reduce((most, one) => Math.max(most, one), 0);
  read.height = LANE_TITLE + read.depths * read.rowHeight + LANE_GAP;
  return read;
}

/** A window: its lanes from top to bottom, and which rows a launch started. */
function readWindow(window_, names) {
  const lanes = window_.lanes.map((lane) => readLane(lane, names));
  let top = AXIS;
  for (const lane of lanes) {
    lane.top = top;
    top += lane.height;
  }
  const launches = new Map();
  for (const lane of lanes.filter((one) => one.kind === "launch")) {
    lane.id.forEach((id, row) => launches.set(id, { lane, row, started: [] }));
  }
  for (const lane of lanes.filter((one) => one.kind === "device")) {
    lane.launch.forEach((offset, row) => {
      if (offset !== null) launches.get(lane.id[row] + offset)?.started.push({ lane, row });
    });
  }
  return { title: window_.title, start: window_.start, dur: window_.dur, lanes, launches, height: top };
}

/** The first row that starts at or after a time. */
function firstFrom(lane, time) {
  let low = 0;
  let high = lane.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.start[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The rows that may overlap [from, to): first and end. A long one may start long before. */
function rowsWithin(lane, from, to) {
  return [firstFrom(lane, from - lane.longest), firstFrom(lane, to)];
}

/** The row of a depth at a time, or the nearest within some time of it; null if there is none. */
function rowAt(lane, depth, time, slack) {
  const [first, end] = rowsWithin(lane, time - slack, time + slack + 1);
  let best = null;
  let nearest = Infinity;
  for (let row = first; row < end; row++) {
    if (lane.depth[row] !== depth) continue;
    const away = Math.max(lane.start[row] - time, time - lane.start[row] - lane.dur[row], 0);
    if (away <= slack && away < nearest) [best, nearest] = [row, away];
  }
  return best === null ? null : { lane, row: best };
}

/** The row of a lane that is at a time, or next to it. */
function nearestRow(lane, time) {
  if (!lane) return null;
  const after = firstFrom(lane, time);
  const away = (row) => Math.max(lane.start[row] - time, time - lane.start[row] - lane.dur[row], 0);
  const rows = [after - 1, after].filter((row) => row >= 0 && row < lane.count);
  rows.sort((one, other) => away(one) - away(other));
  return rows.length ? { lane, row: rows[0] } : null;
}

/** The launch of a row of a device, or null if it is not in the window. */
function launchOf(view, at) {
  const offset = at.lane.kind === "device" ? at.lane.launch[at.row] : null;
  return offset === null ? null : (view.launches.get(at.lane.id[at.row] + offset) ?? null);
}

// ---- words ----

/** A time in three figures: "72.9 ms". */
function durationText(ns) {
  const size = Math.abs(ns);
  if (size < 999.5) return `${Math.round(ns)} ns`;
  for (const [unit, scale] of [["us", 1e3], ["ms", 1e6], ["s", 1e9]]) {
    const value = ns / scale;
    if (Math.abs(value) < 999.5 || unit === "s") return `${Number(value.toPrecision(3))} ${unit}`;
  }
  return "";
}

/** What is to be said of a row: its name, then facts as pairs. */
function factsOf(view, at) {
  const { lane, row } = at;
  const label = lane.names[lane.label_at[row]];
  const start = lane.start[row];
  const facts = [
    ["where", lane.name],
    ["start", `${(start / 1e3).toLocaleString("en", { maximumFractionDigits: 3 })} us from the start of the window`],
    ["duration", `${durationText(lane.dur[row])} (${lane.dur[row].toLocaleString("en")} ns)`],
  ];
  if (lane.kind === "device") facts.push(["category", label]);
  if (lane.kind === "idle") facts.push(["cause", label]);
  const launch = launchOf(view, at);
  if (launch) {
    const lead = start - launch.lane.start[launch.row];
    facts.push(["launch", `${launch.lane.names[launch.lane.name_at[launch.row]]}, begun ${durationText(lead)} before`]);
  } else if (lane.kind === "device" && lane.launch[row] !== null) {
    facts.push(["launch", `row ${lane.id[row] + lane.launch[row]}, not in this window`]);
  }
  if (lane.kind === "launch") {
    const started = view.launches.get(lane.id[row])?.started.length ?? 0;
    facts.push(["started", `${started} rows of devices in this window`]);
  }
  if (lane.step[row] >= 0) facts.push(["step", String(lane.step[row])]);
  if (lane.id[row]) facts.push([lane.kind === "idle" ? "ended by row" : "row", String(lane.id[row])]);
  return { name: nameOf(at), facts };
}

/** The name of a row; of a gap, who is blamed. */
function nameOf({ lane, row }) {
  const name = lane.names[lane.name_at[row]];
  if (lane.kind !== "idle") return name;
  return name ? `idle: blamed on ${name}` : "idle: nobody is blamed";
}
