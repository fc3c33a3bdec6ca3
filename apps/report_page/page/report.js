"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const light = ["#0072b2", "#d55e00", "#009e73", "#b5598c", "#b57a00", "#3b8fc4", "#7a5fc4", "#6f6f00"];
const dark = ["#5cb3f0", "#ff8a4c", "#3fcf9f", "#e59bc6", "#f0b73f", "#9ad5ff", "#b7a2f5", "#c9c94a"];
const darkness = matchMedia("(prefers-color-scheme: dark)");
const $ = (tag, attributes = {}, ...children) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) k in e && k !== "style" ? (e[k] = v) : e.setAttribute(k, v);
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
};
const number = (v, digits = 4) => {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const size = Math.abs(v);
  if (size >= 1e4 && size < 1e15) return Math.round(v).toLocaleString("en-US");
  if (v !== 0 && (size < 1e-3 || size >= 1e15)) return v.toExponential(Math.max(2, digits - 2)).replace(/\.?0+e/, "e");
  return String(Number(v.toPrecision(digits)));
};
const short = (v, digits = 3) => {
  const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  for (const [size, unit] of units) if (Math.abs(v) >= size) return number(v / size, digits) + unit;
  return number(v, digits + 1);
};
const percent = (v, digits = 3) => number(100 * v, digits) + "%";
// Labels of an axis: with as many digits as tell its ticks apart. A tick that dygraphs leaves bare stays so.
const label = (ticks, format) => {
  const named = ticks.filter((t) => t.label !== "");
  for (let digits = 3; digits <= 15; ++digits) {
    named.forEach((t) => (t.label = format(t.v, digits)));
    if (new Set(named.map((t) => t.label)).size === named.length) break;
  }
  return ticks;
};
const ticker = (format) => (...place) => label(Dygraph.numericTicks(...place), format);
const axisNames = { steps: "step", tokens: "tokens", hours: "hours" };
const state = { x: data.x, smooth: 1, window: null, hidden: new Set() };
const stroke = (i) => (darkness.matches && !document.documentElement.dataset.print ? dark : light)[i % light.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = () => runs.map((r, i) => i).filter((i) => runs[i].x && !state.hidden.has(i));

const paintNames = () => {
  for (let i = 0; i < Math.max(runs.length, light.length); ++i) document.documentElement.style.setProperty("--stroke-" + i, stroke(i));
};
runs.forEach((r, i) => document.getElementById("run-" + i).style.setProperty("--stroke", `var(--stroke-${i})`));

// --- charts ---------------------------------------------------------------------------------------------------
const charts = [...data.charts, ...data.groups];
const single = runs.filter((r) => r.x).length === 1;
const keysOf = (chart) => chart.keys || [[chart.key, ""]];
const patterns = [null, [6, 3], [2, 3], [8, 3, 2, 3]];

const smoothed = (values) => {
  if (state.smooth === 1) return values;
  const out = [], queue = [];
  let sum = 0;
  for (const v of values) {
    if (v === null) { out.push(null); continue; }
    queue.push(v); sum += v;
    if (queue.length > state.smooth) sum -= queue.shift();
    out.push(sum / queue.length);
  }
  return out;
};

// Rows of all shown runs by x; a cell is [low, value, high], the extremes of what the point stands for.
const tableOf = (chart) => {
  const columns = [], rows = new Map();
  const empty = [null, null, null];
  const add = (label, color, xs, s, options = {}) => {
    const column = columns.length;
    columns.push({ label, color, ...options });
    const line = options.points ? s.last : smoothed(s.last);
    xs.forEach((x, i) => {
      if (line[i] === null && !(s.gaps && s.gaps[i])) return;
      if (!rows.has(x)) rows.set(x, []);
      const v = line[i] === null ? NaN : line[i];
      rows.get(x)[column] = s.min ? [s.min[i] ?? v, v, s.max[i] ?? v] : [v, v, v];
    });
  };
  for (const i of shown()) {
    const r = runs[i], s = r.series[chart.key];
    keysOf(chart).forEach(([key, label], k) => {
      if (!r.series[key]) return;
      const own = !label ? {} : single ? { marked: true } : { marked: true, pattern: patterns[k % patterns.length] };
      add(label ? r.name + " " + label : r.name, stroke(label && single ? k : i), r.x[state.x], r.series[key], own);
    });
    const v = chart.also && r.series[chart.also];
    if (v) add(r.name + " " + chart.also, stroke(i), r.x[state.x], v, { points: true });
    const plan = chart.planned && r.planned && r.planned[chart.planned];
    if (plan && s) {
      const xs = r.x[state.x], flat = xs.map((_, k) => (k === 0 || k === xs.length - 1 ? plan : null));
      add(r.name + " planned", stroke(i), xs, { last: flat }, { dashed: true, points: false });
    }
  }
  const sorted = [...rows.entries()].sort((a, b) => a[0] - b[0]);
  return { columns, rows: sorted.map(([x, cells]) => [x, ...columns.map((_, c) => cells[c] || empty)]) };
};

// For a logarithmic axis: of a cell, dygraphs would leave out all if one of its three is not above 0. Those become the
// least that is; where none is, a gap stays.
const aboveZero = (cell) => {
  const positive = cell.filter((v) => v > 0);
  if (!positive.length || (cell[1] !== null && Number.isNaN(cell[1]))) return cell;
  const least = Math.min(...positive);
  return cell.map((v) => (v > 0 ? v : least));
};
// The range of an x axis where dygraphs finds none: of one place.
const wholeOf = (rows) => {
  if (rows.length !== 1) return null;
  const x = rows[0][0], pad = Math.abs(x) / 2 || 1;
  return [x - pad, x + pad];
};

let syncing = false;
const follow = (source) => {
  if (syncing) return;
  syncing = true;
  for (const c of charts)
    if (c.graph && c.graph !== source) c.graph.updateOptions({ dateWindow: state.window || c.whole });
  syncing = false;
};

const draw = (chart) => {
  if (chart.graph) chart.graph.destroy();
  chart.graph = null;
  const { columns, rows } = tableOf(chart);
  chart.plot.textContent = "";
  const all = rows.flatMap((r) => r.slice(1).flat()).filter((v) => Number.isFinite(v) && (!chart.log || v > 0));
  if (!all.length) { chart.plot.append($("p", { className: "dim" }, "Nothing to draw for the runs that are shown.")); return; }
  const series = {};
  columns.forEach((c) => {
    series[c.label] = { color: c.color, strokeWidth: c.points ? 0 : c.dashed ? 1.4 : 1.6, drawPoints: !!(c.points || rows.length < 3 || (c.marked && rows.length < 200)), pointSize: 3,
      strokePattern: c.dashed ? [6, 5] : c.pattern || null };
  });
  chart.whole = wholeOf(rows);
  const few = rows.length < 3, cells = chart.log ? rows.map(([x, ...row]) => [x, ...row.map(aboveZero)]) : rows;
  let low = all[0], high = all[0];
  for (const v of all) { if (v < low) low = v; if (v > high) high = v; }
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const range = chart.log ? [low / 1.2, high * 1.2] : [chart.zero ? 0 : low - pad, high + pad];
  chart.graph = new Dygraph(chart.plot, cells, {
    labels: [axisNames[state.x], ...columns.map((c) => c.label)],
    customBars: true, fillAlpha: 0.16, connectSeparatedPoints: true, series, logscale: !!chart.log, drawPoints: few, pointSize: 3,
    valueRange: range, dateWindow: state.window || chart.whole, gridLineColor: css("--grid"), axisLineColor: css("--line"), legend: "never",
    highlightCircleSize: 3.5, animatedZooms: false, rightGap: 10, xRangePad: 6, panEdgeFraction: 0.05,
    axes: { x: { ticker: ticker(short), pixelsPerLabel: 55 }, y: { ticker: ticker(short), axisLabelWidth: 50, pixelsPerLabel: 34 } },
    highlightCallback: (_, x, points) => {
      const values = points.filter((p) => p.yval !== null && !Number.isNaN(p.yval))
        .map((p) => (points.length > 1 ? p.name + " " : "") + number(p.yval) + (chart.unit ? " " + chart.unit : ""));
      chart.value.textContent = axisNames[state.x] + " " + number(x, 6) + ":  " + values.join(",  ");
    },
    unhighlightCallback: () => { chart.value.textContent = ""; },
    zoomCallback: (from, to) => { state.window = chart.graph.isZoomed("x") ? [from, to] : null; follow(state.window ? chart.graph : null); },
  });
  chart.plot.setAttribute("aria-label", chart.title + ": " + columns.map((c, k) => {
    const v = rows.map((r) => r[k + 1][1]).filter((y) => Number.isFinite(y));
    return v.length ? `${c.label} from ${number(v[0])} to ${number(v[v.length - 1])}` : c.label;
  }).join("; "));
};

const tableView = (chart) => {
  const body = $("div", { className: "scroll" });
  const box = $("details", {}, $("summary", {}, "table"), body);
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    const { columns, rows } = tableOf(chart);
    const stride = Math.max(1, Math.ceil(rows.length / 24));
    const picked = rows.filter((_, i) => i % stride === 0 || i === rows.length - 1);
    body.replaceChildren($("table", {},
      $("thead", {}, $("tr", {}, $("th", { scope: "col" }, axisNames[state.x]), ...columns.map((c) => $("th", { scope: "col" }, c.label)))),
      $("tbody", {}, ...picked.map((r) => $("tr", {}, $("td", {}, number(r[0], 6)),
        ...r.slice(1).map(([lo, v, hi]) => $("td", {}, lo !== null && hi - lo > 1e-9 * Math.abs(v) && v !== lo
          ? `${number(v)} (${number(lo)} to ${number(hi)})` : number(v))))))));
  });
  return box;
};

const keys = (event, chart) => {
  const g = chart.graph;
  if (!g) return;
  const [all0, all1] = chart.whole || g.xAxisExtremes();
  let [a, b] = g.xAxisRange();
  const width = b - a;
  const moves = { ArrowLeft: [-0.15, -0.15], ArrowRight: [0.15, 0.15], "+": [0.15, -0.15], "=": [0.15, -0.15], "-": [-0.2, 0.2] };
  if (event.key === "0" || event.key === "Escape") state.window = null;
  else if (event.key === "l") { chart.log = !chart.log; draw(chart); return; }
  else if (moves[event.key]) {
    a += moves[event.key][0] * width; b += moves[event.key][1] * width;
    if (a < all0) { b += event.key.startsWith("Arrow") ? all0 - a : 0; a = all0; }
    if (b > all1) { a -= event.key.startsWith("Arrow") ? b - all1 : 0; b = all1; }
    state.window = [Math.max(a, all0), Math.min(b, all1)];
  } else return;
  event.preventDefault();
  follow(null);
};

const varies = (chart) => runs.some((r) => r.series && r.series[chart.key] && new Set(r.series[chart.key].last).size > 1);
const chartArea = document.getElementById("charts");
for (const chart of charts) {
  chart.present = runs.some((r) => r.series && keysOf(chart).some(([key]) => r.series[key])) && (!chart.whenVaries || varies(chart));
  if (!chart.present) continue;
  chart.plot = $("div", { className: "plot", tabIndex: 0, role: "img" });
  chart.value = $("span", { className: "value", role: "status" });
  const log = $("button", { type: "button", title: "linear or logarithmic (key l)", onclick: () => { chart.log = !chart.log; draw(chart); } }, "log");
  chartArea.append($("section", { className: "card" + (chart.wide ? " wide" : "") },
    $("div", { className: "chart-head" }, $("h3", {}, chart.title, chart.unit ? $("span", { className: "dim" }, " " + chart.unit) : null,
      chart.hint ? $("span", { className: "dim", style: "font-weight:400" }, "  " + chart.hint) : null), chart.value, log),
    chart.keys ? $("div", { className: "legend dim", style: "font-size:13px" }, ...chart.keys.map(([, label], k) => $("span", {},
      single ? $("span", { className: "swatch", style: `background:var(--stroke-${k % light.length})` }) : null,
      label + (single || patterns[k % patterns.length] === null ? "" : " (dashed " + k + ")")))) : null,
    chart.plot, tableView(chart)));
  chart.plot.addEventListener("keydown", (e) => keys(e, chart));
}
const present = charts.filter((c) => c.present);
if (present.length % 2 === 0 && present.length > 1) chartArea.lastElementChild.classList.add("wide");
const redraw = () => present.forEach(draw);

// --- tools ----------------------------------------------------------------------------------------------------
const choice = (label, options, value, change) => {
  const s = $("select", { onchange: () => change(s.value) }, ...options.map(([v, text]) => $("option", { value: v, selected: v === String(value) }, text)));
  return $("label", {}, label, s);
};
const tools = document.getElementById("tools");
if (present.length) {
  tools.append(
    choice("over", [["steps", "steps"], ["tokens", "tokens"], ["hours", "hours"]], state.x, (v) => { state.x = v; state.window = null; redraw(); }),
    choice("smooth", [["1", "no"], ["5", "5 points"], ["20", "20 points"], ["100", "100 points"]], 1, (v) => { state.smooth = Number(v); redraw(); }),
    $("button", { type: "button", onclick: () => { state.window = null; follow(null); } }, "whole run"));
  if (runs.length > 1) {
    tools.append($("span", { className: "legend" }, ...runs.map((r, i) => r.x && $("label", {},
      $("input", { type: "checkbox", checked: true, onchange: (e) => { e.target.checked ? state.hidden.delete(i) : state.hidden.add(i); redraw(); } }),
      $("span", { className: "swatch", style: `background:var(--stroke-${i})` }), r.name))));
  }
  tools.append($("span", { className: "dim keys" }, "drag to zoom; keys on a chart: arrows, + and −, 0, l"));
}

// --- where the time went, memory ------------------------------------------------------------------------------------
const section = (title, ...content) => document.getElementById("sections").append($("h2", {}, title), ...content);
const table = (head, rows, className = "card scroll") => $("div", { className }, $("table", {},
  $("thead", {}, $("tr", {}, ...head.map((h, i) => $("th", { scope: "col", className: h.startsWith("!") ? "text" : "" }, h.replace("!", ""))))),
  $("tbody", {}, ...rows)));

const timed = runs.filter((r) => r.trace);
if (timed.length) {
  for (const r of timed) {
    const t = r.trace, percent = (v) => number((100 * v) / t.split.total, 3) + "%";
    const parts = [["computing", t.split.compute, "#0072b2"], ["communication that nothing hides", t.split.exposed, "#d55e00"], ["neither", t.split.idle, "#7a828a"]];
    const most = Math.max(...t.operations.map((o) => o.ms));
    section(runs.length > 1 ? "Where the time went: " + r.name : "Where the time went", $("div", { className: "card" },
      $("p", { className: "dim", style: "margin:0" }, t.about),
      $("div", { className: "split", role: "img", "aria-label": parts.map((p) => p[0] + " " + percent(p[1])).join(", ") },
        ...parts.filter((p) => p[1] > 0).map((p) => $("span", { style: `width:${(100 * p[1]) / t.split.total}%;background:${p[2]}`, title: p[0] + " " + percent(p[1]) }, p[0] + " " + percent(p[1])))),
      t.split.communication === 0 ? null : $("p", { className: "dim", style: "margin:0 0 8px" }, "Communication took " + percent(t.split.communication) + ", of which " + number(100 * (1 - t.split.exposed / t.split.communication), 3) + "% beside computing."),
      table(["!operation", "ms in a step", "", "planned GFLOP", "GFLOP/s", "planned MB"], t.operations.map((o) => $("tr", {},
        $("td", { className: "text" }, o.name), $("td", {}, number(o.ms)),
        $("td", { style: "text-align:left;width:22%" }, $("span", { className: "bar", style: `width:${(100 * o.ms) / most}%` + (o.call ? ";background:#d55e00" : "") })),
        $("td", {}, o.flops ? number(o.flops * 1e-9) : "–"), $("td", {}, o.flops && o.ms ? number((o.flops * 1e-6) / o.ms) : "–"),
        $("td", {}, o.bytes ? number(o.bytes * 1e-6) : "–"))), "scroll")));
  }
}

const planned = runs.filter((r) => r.planned && r.planned.categories);
if (planned.length) {
  const names = [...new Set(planned.flatMap((r) => r.planned.categories.map((c) => c[0])))];
  const of = (r, name) => (r.planned.categories.find((c) => c[0] === name) || [])[1];
  const last = (r) => { const s = r.series && r.series.memory; return s ? s.last[s.last.length - 1] : null; };
  section("Memory of a rank, planned and measured", table(["!GiB", ...planned.map((r) => r.name)], [
    ...names.map((n) => $("tr", {}, $("td", { className: "text" }, n), ...planned.map((r) => $("td", {}, number(of(r, n)))))),
    $("tr", {}, $("td", { className: "text" }, "planned"), ...planned.map((r) => $("td", {}, $("b", {}, number(r.planned.memory))))),
    $("tr", {}, $("td", { className: "text" }, "measured, the program and its libraries too"), ...planned.map((r) => $("td", {}, $("b", {}, number(last(r)))))),
  ]));
}

for (const r of runs.filter((r) => r.pipeline)) {
  section(runs.length > 1 ? "Stages of the pipeline: " + r.name : "Stages of the pipeline", $("p", { className: "dim" }, r.pipeline.schedule),
    table(["!rank of the pipeline", "!holds"], r.pipeline.ranks.map((text, i) => $("tr", {}, $("td", { className: "text" }, String(i)), $("td", { className: "text" }, text)))));
}

// --- FP8 ------------------------------------------------------------------------------------------------------
const cividis = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
const ramp = (t) => {
  const at = Math.min(Math.max(t, 0), 1) * (cividis.length - 1), k = Math.min(Math.floor(at), cividis.length - 2), f = at - k;
  return cividis[k].map((v, c) => Math.round(v + f * (cividis[k + 1][c] - v)));
};
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const kinds = {
  underflow: { name: "underflow: numbers that became zero", value: (b) => (b === 0 ? 0 : 10 ** ((6 * (b - 1)) / 253 - 6)), text: (v) => number(100 * v, 3) + "%", scale: ["1e-6", "1"], at: (b) => b / 254 },
  saturation: { name: "saturation: numbers past the largest", value: (b) => (b === 0 ? 0 : 10 ** ((6 * (b - 1)) / 253 - 6)), text: (v) => number(100 * v, 3) + "%", scale: ["1e-6", "1"], at: (b) => b / 254 },
  drift: { name: "scale: octaves since the first", value: (b) => (b - 127) / 8, text: (v) => (v >= 0 ? "+" : "") + number(v, 3) + " octaves", scale: ["−8", "+8"], at: (b) => 0.5 + (b - 127) / 128 },
};
runs.forEach((r, index) => {
  const f = r.fp8;
  if (!f) return;
  const rows = f.rows.length, columns = f.steps.length;
  const scale = Math.max(2, Math.min(10, Math.floor(340 / rows)));
  const canvas = $("canvas", { className: "map", width: columns, height: rows, tabIndex: 0, role: "img" });
  canvas.style.height = rows * scale + "px";
  const tip = $("div", { className: "map-tip dim", role: "status" }, "Point at a cell, or move with the arrow keys; a click opens its curve.");
  const curve = $("div", {});
  const legend = $("span", { className: "ramp" });
  const roles = [];
  for (const [, role] of f.rows) roles.length && roles[roles.length - 1][0] === role ? ++roles[roles.length - 1][1] : roles.push([role, 1]);
  let kind = "underflow", at = { row: 0, column: columns - 1 }, graph = null;
  const decoded = {};
  const cells = () => (decoded[kind] ??= bytesOf(f[kind]));
  const paint = () => {
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), bytes = cells();
    for (let i = 0; i < bytes.length; ++i) {
      const [red, green, blue] = bytes[i] === 255 ? [128, 128, 128] : ramp(kinds[kind].at(bytes[i]));
      image.data.set([red, green, blue, bytes[i] === 255 ? 40 : 255], 4 * i);
    }
    // Small gradients are rounded away harmlessly: they have a limit of their own.
    const limit = f.alert[kind], dyLimit = kind === "underflow" ? f.alert.gradient_underflow : limit;
    for (let i = 0; i < bytes.length; ++i) {
      const own = f.rows[Math.floor(i / columns)][1] === "dy" ? dyLimit : limit;
      if (own && bytes[i] !== 255 && kinds[kind].value(bytes[i]) > own) image.data.set([214, 40, 40, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    const limits = [...(limit ? [percent(limit)] : []), ...(dyLimit && dyLimit !== limit ? ["dy " + percent(dyLimit)] : [])];
    const stops = [0, 0.25, 0.5, 0.75, 1].map((t) => `rgb(${ramp(t)})`).join(",");
    legend.replaceChildren(kinds[kind].scale[0], $("i", { style: `background:linear-gradient(90deg,${stops})` }), kinds[kind].scale[1],
      ...(limits.length ? [$("i", { style: "width:14px;background:#d62828" }), "past the alert (" + limits.join(", ") + ")"] : []));
    canvas.setAttribute("aria-label", `${kinds[kind].name}; ${rows} operands over ${columns} columns of steps`);
  };
  const say = () => {
    const b = cells()[at.row * columns + at.column], [layer, role] = f.rows[at.row];
    tip.textContent = `step ${f.steps[at.column]}: ${role} of ${layer}: ` + (b === 255 ? "not logged" : kinds[kind].text(kinds[kind].value(b)));
  };
  const open = () => {
    const [layer, role] = f.rows[at.row], bytes = cells();
    if (graph) graph.destroy();
    const plot = $("div", { className: "plot" });
    curve.replaceChildren($("h3", { style: "margin-top:10px" }, `${role} of ${layer}`, $("span", { className: "dim", style: "font-weight:400" }, "  " + kinds[kind].name)), plot);
    graph = new Dygraph(plot, f.steps.map((s, i) => { const b = bytes[at.row * columns + i]; return [s, b === 255 ? null : kinds[kind].value(b)]; }), {
      labels: ["step", role], color: stroke(index), strokeWidth: 1.6, gridLineColor: css("--grid"), axisLineColor: css("--line"), legend: "never",
      includeZero: true, drawPoints: columns < 3, dateWindow: wholeOf(f.steps.map((s) => [s])),
      axes: { x: { ticker: ticker(short) }, y: { ticker: ticker(kind === "drift" ? short : percent), axisLabelWidth: 56 } } });
  };
  const place = (e) => {
    const box = canvas.getBoundingClientRect();
    at = { row: Math.min(rows - 1, Math.max(0, Math.floor(((e.clientY - box.top) / box.height) * rows))),
      column: Math.min(columns - 1, Math.max(0, Math.floor(((e.clientX - box.left) / box.width) * columns))) };
    say();
  };
  canvas.addEventListener("mousemove", place);
  canvas.addEventListener("click", (e) => { place(e); open(); });
  canvas.addEventListener("keydown", (e) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (move) {
      at = { row: Math.min(rows - 1, Math.max(0, at.row + move[0])), column: Math.min(columns - 1, Math.max(0, at.column + move[1])) };
      say();
    } else if (e.key === "Enter" || e.key === " ") open();
    else return;
    e.preventDefault();
  });
  section(runs.length > 1 ? "FP8 operands: " + r.name : "FP8 operands", $("div", { className: "card" },
    $("div", { className: "tools", style: "margin:0 0 10px" },
      choice("show", Object.entries(kinds).map(([k, v]) => [k, v.name]), kind, (v) => { kind = v; paint(); say(); if (graph) open(); }), legend),
    $("div", { className: "map-box" }, $("div", { className: "map-roles" }, ...roles.map(([role, count]) => $("span", { style: `flex:${count}` }, role))), canvas), $("div", { className: "dim", style: "display:flex;justify-content:space-between;font-size:12px" }, $("span", {}, "step " + f.steps[0]), $("span", {}, `${rows} rows: from the first layer down`), $("span", {}, "step " + f.steps[columns - 1])),
    tip, curve));
  paint();
  addEventListener("report-theme", () => { if (graph) open(); });
});

// --- events, configurations ---------------------------------------------------------------------------------------
const events = runs.flatMap((r) => (r.events || []).map((e) => ({ run: r.name, ...e })));
if (events.length) {
  section("Events", table([...(runs.length > 1 ? ["!run"] : []), "!step", "!when", "!what"], events.map((e) => $("tr", {},
    ...(runs.length > 1 ? [$("td", { className: "text" }, e.run)] : []), $("td", { className: "text" }, number(e.step, 9)),
    $("td", { className: "text" }, e.when), $("td", { className: "text" }, e.text)))));
}
const configured = runs.filter((r) => r.config);
if (configured.length) {
  const paths = [...new Set(configured.flatMap((r) => Object.keys(r.config)))];
  const differs = (p) => new Set(configured.map((r) => r.config[p])).size > 1;
  const row = (p) => $("tr", { className: differs(p) ? "differs" : "" }, $("td", { className: "text" }, p), ...configured.map((r) => $("td", { className: "text" }, r.config[p] ?? "–")));
  const head = ["!key", ...configured.map((r) => "!" + r.name)];
  const different = paths.filter(differs);
  section(configured.length > 1 ? "Configurations" : "Configuration",
    ...(configured.length > 1 ? [$("p", { className: "dim" }, different.length ? "Keys that differ:" : "All keys are the same."), ...(different.length ? [table(head, different.map(row))] : [])] : []),
    $("details", {}, $("summary", {}, `all ${paths.length} keys`), table(head, paths.map(row))));
}

const theme = () => { paintNames(); redraw(); dispatchEvent(new Event("report-theme")); };
darkness.addEventListener("change", theme);
addEventListener("beforeprint", () => { document.documentElement.dataset.print = "yes"; theme(); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; theme(); });
paintNames();
redraw();
})();
