"use strict";
// A page of many runs (kernbench/html_report/study.py).

const WRITTEN = {
  s: (value) => seconds(value), B: (value) => size(value), share: (value) => share(value, 1),
  "": (value) => (Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 6 })),
};
const LINE_COLOURS = ["gemm", "collective", "dma", "attention", "path", "other", "math", "match", "kernel", "launch"];

class Study {
  constructor(header) {
    Object.assign(this, header);
    this.columns = header.heads; // of the table; the file's own are none here
    this.place = new Map(this.columns.map(({ name }, column) => [name, column]));
  }

  value(row, name) { return row[this.place.get(name)]; }

  unit(name) { return this.columns[this.place.get(name)].unit; }

  written(name, value) {
    if (value === null || value === undefined) return "-";
    if (typeof value !== "number") return String(value);
    return WRITTEN[this.unit(name)]?.(value) ?? rate(value, this.unit(name));
  }

  // The colour of a row: an alert's for those that are none of the good ones, or among the bad ones.
  tint(row, { good, bad }) { return colour((good && !this.value(row, good)) || (bad && this.value(row, bad)) ? "alert" : "gemm"); }

  named(row, names) { return names.map((name) => `${name} ${this.written(name, this.value(row, name))}`).join(", "); }
}

// Ends and interval of an axis of bytes: a round number of KiB, MiB or GiB, where a charting library would take one of thousands.
function bytesScale(values) {
  const low = Math.min(...values), high = Math.max(...values), wanted = (high - low || high || 1) / 5, unit = SIZES.find(([least]) => wanted >= least)?.[0] ?? 1;
  const interval = unit * 2 ** Math.max(0, Math.round(Math.log2(wanted / unit)));
  return { interval, min: Math.floor(low / interval) * interval, max: Math.ceil(high / interval) * interval || interval };
}

// The scale of an axis: numbers, or the values as they are.
function scaleOf(study, name, rows, log) {
  const values = rows.map((row) => study.value(row, name)).filter((value) => value !== null), numbers = values.every((value) => typeof value === "number");
  if (!numbers) return { type: "category", data: [...new Set(values.map(String))] };
  const write = (value) => study.written(name, value);
  if (log && values.every((value) => value > 0)) return { type: "log", scale: true, axisLabel: { formatter: write } };
  return { type: "value", scale: true, axisLabel: { formatter: write }, ...(study.unit(name) === "B" ? bytesScale(values) : {}) };
}

function drawLines(study, chart, box) {
  const { x: xs, y: ys, by, log } = chart, choices = [[ys, "show"], [xs, "over"]].map(([names, label]) => {
    const choice = element("select", { "aria-label": label }, ...names.map((name) => element("option", { value: name }, name)));
    return { choice, label: element("label", {}, `${label} `, choice) };
  });
  const [y, x] = choices.map(({ choice }) => choice), logs = element("input", { type: "checkbox", "aria-label": "logarithmic axes", style: "width:auto;min-height:0" });
  logs.checked = log;
  box.append(element("div", { class: "tools" }, ...choices.map(({ label }) => label), element("label", {}, logs, " logarithmic")));
  const inside = element("div", { class: "chart" });
  box.append(inside);
  const shown = chartIn(inside, 380, () => {
    const rows = study.rows.filter((row) => study.value(row, y.value) !== null && study.value(row, x.value) !== null), others = by.filter((name) => name !== x.value), lines = new Map();
    for (const row of rows) {
      const name = study.named(row, others) || y.value;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push(row);
    }
    const across = scaleOf(study, x.value, rows, logs.checked), place = (row) => (across.type === "category" ? String(study.value(row, x.value)) : study.value(row, x.value));
    if (across.type !== "category") for (const line of lines.values()) line.sort((a, b) => place(a) - place(b));
    return {
      grid: { left: 84, right: 24, top: Math.min(34 + 18 * Math.ceil(lines.size / 3), 90), bottom: 44 }, legend: { top: 0, type: "scroll", textStyle: { color: colour("soft") }, show: lines.size > 1 },
      xAxis: axis(x.value, { ...across, nameLocation: "middle", nameGap: 28 }), yAxis: axis(y.value, scaleOf(study, y.value, rows, logs.checked)),
      tooltip: { confine: true, extraCssText: "white-space: normal; max-width: 420px", formatter: ({ data: { row } }) => echarts.format.encodeHTML(study.named(row, [...by, y.value])) },
      series: [...lines].map(([name, line], i) => ({ name, type: "line", symbolSize: 7, color: colour(LINE_COLOURS[i % LINE_COLOURS.length]), lineStyle: { type: i < LINE_COLOURS.length ? "solid" : "dashed" }, data: line.map((row) => ({ value: [place(row), study.value(row, y.value)], row })) })),
    };
  });
  for (const each of [x, y, logs]) each.addEventListener("change", shown.paint);
}

function drawBars(study, chart, box) {
  const { y: [y], by, low, high } = chart;
  const rows = study.rows.filter((row) => study.value(row, y) !== null).slice(0, 60), inside = element("div", { class: "chart" }), names = by.filter((name) => new Set(rows.map((row) => study.value(row, name))).size > 1);
  box.append(inside);
  chartIn(inside, rows.length * 26 + 64, () => ({
    grid: { left: "32%", right: 80, top: 8, bottom: 44 },
    xAxis: axis(y, { type: "value", min: 0, axisLabel: { formatter: (value) => study.written(y, value) }, nameLocation: "middle", nameGap: 28 }),
    yAxis: { type: "category", inverse: true, data: rows.map((row) => study.named(row, names.length ? names : by)), axisLabel: { color: colour("soft"), fontSize: 11, width: Math.max(inside.clientWidth * 0.3, 90), overflow: "truncate" }, axisTick: { show: false } },
    tooltip: { confine: true, formatter: ({ dataIndex }) => echarts.format.encodeHTML(study.named(rows[dataIndex], [...by, y, ...[low, high].filter(Boolean)])) },
    series: [
      { type: "bar", barMaxWidth: 15, data: rows.map((row) => ({ value: study.value(row, y), itemStyle: { color: study.tint(row, chart), opacity: 0.85 } })), label: { show: !(low && high), position: "right", color: colour("soft"), fontSize: 11, formatter: ({ value }) => study.written(y, value) } },
      ...(low && high ? [{
        type: "custom", silent: true, z: 3, data: rows.map((row, i) => [study.value(row, low), i, study.value(row, high)]).filter(([from, , to]) => from !== null && to !== null), encode: { x: [0, 2], y: 1 },
        renderItem: (params, api) => {
          const [left, middle] = api.coord([api.value(0), api.value(1)]), [right] = api.coord([api.value(2), api.value(1)]), line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour("text"), lineWidth: 1.3 } });
          const text = study.written(y, study.value(rows[api.value(1)], y));
          return { type: "group", children: [{ type: "text", x: right + 7, y: middle, style: { text, fill: colour("soft"), fontSize: 11, verticalAlign: "middle" } }, line(left, middle, right, middle), line(left, middle - 4, left, middle + 4), line(right, middle - 4, right, middle + 4)] };
        },
      }] : []),
    ],
  }));
}

function drawPoints(study, chart, box) {
  const { x: [x], y: [y], by } = chart;
  const rows = study.rows.filter((row) => study.value(row, x) !== null && study.value(row, y) !== null), inside = element("div", { class: "chart" });
  box.append(inside);
  chartIn(inside, 320, () => ({
    grid: { left: 84, right: 24, top: 16, bottom: 44 },
    xAxis: axis(x, { ...scaleOf(study, x, rows), nameLocation: "middle", nameGap: 28 }), yAxis: axis(y, scaleOf(study, y, rows)),
    tooltip: { confine: true, extraCssText: "white-space: normal; max-width: 420px", formatter: ({ data: { row } }) => echarts.format.encodeHTML(study.named(row, [...by, x, y])) },
    series: [{ type: "scatter", symbolSize: 10, data: rows.map((row) => ({ value: [study.value(row, x), study.value(row, y)], row, itemStyle: { color: study.tint(row, chart), opacity: 0.8 } })) }],
  }));
}

function showRuns(study) {
  let order = null, down = false;
  const heads = study.columns.map(({ name }) => element("button", { type: "button", class: "head", onclick: () => { down = order === name && !down; order = name; fill(); } }, name));
  const compare = (a, b) => (a === null || b === null ? (a === null) - (b === null) : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const fill = () => {
    const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = study.rows.filter((row) => words.every((word) => study.columns.some(({ name }) => study.written(name, study.value(row, name)).toLowerCase().includes(word))));
    if (order) rows.sort((a, b) => (down ? -1 : 1) * compare(study.value(a, order), study.value(b, order)));
    at("found").textContent = words.length ? `${rows.length.toLocaleString("en")} of ${study.rows.length.toLocaleString("en")}` : "";
    table(at("run-table"), heads, rows.map((row) => study.columns.map(({ name }) => element("td", { title: String(study.value(row, name) ?? "") }, study.written(name, study.value(row, name))))), 60);
  };
  at("search").addEventListener("input", fill);
  at("runs").hidden = !study.rows.length;
  fill();
}

async function open() {
  setTheme();
  const [bytes] = await Promise.all([inflated(taken("kernbench-data")), openLibrary()]);
  const study = new Study(JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + new DataView(bytes.buffer).getUint32(0, true)))));
  showFacts(study);
  at("failures").hidden = !study.findings.length;
  for (const [heading, text] of study.findings) at("findings").append(element("h3", {}, heading), element("pre", { tabindex: 0 }, text));
  at("charts").hidden = !study.charts.length;
  for (const chart of study.charts) {
    const box = element("div");
    at("chart-list").append(element("h3", {}, chart.title), box);
    ({ lines: drawLines, bars: drawBars, points: drawPoints })[chart.kind](study, chart, box);
  }
  showRuns(study);
  showContents([["failures", "found"], ["charts", "charts"], ["runs", "runs"], ["notes", "notes"]]);
  followTheme();
  at("wait").remove();
  window.report = { study };
  document.documentElement.dataset.open = "yes";
}

open().catch(cannotOpen);
