"use strict";
// Everything below the timeline: tables, and ECharts' own kinds of charts.

const charts = [];

function chartIn(box, height, option) {
  box.style.height = `${height}px`;
  const chart = echarts.init(box);
  const paint = () => chart.setOption({ animation: false, textStyle: { fontFamily: "inherit" }, aria: { enabled: true }, ...option() }, { notMerge: true });
  charts.push({ chart, paint });
  new ResizeObserver(() => chart.getWidth() !== box.clientWidth && chart.resize()).observe(box);
  paint();
  return { chart, paint };
}

// A legend above a chart of this width, on as many lines as its names need, and where the chart begins below it.
function legendOver(names, width) {
  let lines = 1, used = 0;
  for (const name of names) {
    const wide = 36 + 6.2 * name.length;
    if (used && used + wide > width - 12) [lines, used] = [lines + 1, 0];
    used += wide;
  }
  return { top: 40 + 20 * lines, legend: { top: 0, left: "center", textStyle: { color: colour("soft"), fontSize: 11.5 }, icon: "roundRect", itemWidth: 12, itemHeight: 12, itemGap: 12 } };
}

function axis(name, more = {}) {
  const soft = colour("soft"), line = { lineStyle: { color: colour("line") } };
  return { name, nameTextStyle: { color: soft }, axisLabel: { color: soft, fontSize: 11, hideOverlap: true, ...more.axisLabel }, axisLine: line, splitLine: line, ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "axisLabel")) };
}

function table(box, heads, rows, shown = 15) {
  const body = element("tbody"), fill = (count) => body.replaceChildren(...rows.slice(0, count).map((cells) => element("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : element("td", {}, cell))))));
  fill(shown);
  box.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), body));
  if (rows.length > shown) {
    const more = element("button", { type: "button", class: "more", onclick: () => { fill(rows.length); more.remove(); } }, `all ${rows.length}`);
    box.append(more);
  }
}

function strip(parts) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0), words = parts.filter(([, value]) => value > 0).map(([name, value, label]) => `${label ?? name} ${share(value, whole)}`).join(", ");
  return element("div", { class: "strip", role: "img", "aria-label": words, title: words }, ...parts.map(([name, value]) => element("i", { class: name, style: `width:${whole ? (100 * value) / whole : 0}%` })));
}

function legend(box, entries) {
  box.replaceChildren(...entries.map(([style, label]) => element("span", {}, element("i", { style }), label)));
}

function showTimes(run) {
  const box = at("rank-times"), lines = element("div", { class: "shares" }), most = 16, key = element("div", { class: "legend" });
  legend(key, [["background:var(--gemm)", "compute"], ["background:repeating-linear-gradient(135deg,var(--gemm) 0 4px,var(--collective) 4px 8px)", "compute that hides communication"], ["background:var(--collective)", "exposed communication"], ["background:var(--dma)", "copies"], ["background:var(--launch)", "host"], ["background:var(--wait)", "idle"]]);
  const fill = (ranks) => lines.replaceChildren(...ranks.flatMap((time) => [
    element("span", {}, `rank ${time.rank}`),
    strip([["compute", Math.max(time.compute - time.overlapped, 0)], ["hidden", time.overlapped, "compute that hides communication"], ["comm", time.communication, "exposed communication"], ["copy", time.copy, "copies"], ["host", time.host], ["idle", time.idle]]),
  ]));
  fill(run.rank_times.slice(0, most));
  box.replaceChildren(key, lines);
  if (run.rank_times.length > most) {
    const more = element("button", { type: "button", class: "more", onclick: () => { fill(run.rank_times); more.remove(); } }, `all ${run.rank_times.length} ranks`);
    box.append(more);
  }
  const names = { compute: "compute", communication: "comm", copy: "copy", host: "host", gap: "gap" };
  const parts = Object.entries(run.path_shares);
  at("path-shares").replaceChildren(
    strip(parts.map(([name, value]) => [names[name], value, name])),
    element("p", { class: "hint" }, parts.filter(([, value]) => value).map(([name, value]) => `${name} ${seconds(value)} (${share(value, run.seconds)})`).join(", ") || "empty"),
  );
  const longest = Math.max(...run.kernels.map((line) => line.seconds), 0), longestCall = Math.max(...run.collectives.map((line) => line.seconds), 0);
  const named = (line, most, tint) => element("td", { title: line.name }, line.name, element("i", { class: "bar", style: `width:${(100 * line.seconds) / (most || 1)}%;background:var(--${tint})` }));
  const whole = run.kernels.reduce((sum, line) => sum + line.seconds, 0);
  table(at("kernels"), ["operation", "calls", "all ranks", "share", "80 % between", "each", "bytes"], run.kernels.map((line) => [
    named(line, longest, line.kind === "copy" ? "dma" : "gemm"), line.calls.toLocaleString("en"), seconds(line.seconds), share(line.seconds, whole), `${seconds(line.low, 3)} - ${seconds(line.high, 3)}`, seconds(line.seconds / line.calls), size(line.nbytes),
  ]));
  if (!run.kernels.length) at("kernels").replaceChildren(element("p", { class: "hint" }, "None ran."));
  table(at("collectives"), ["collective", "calls", "time", "80 % between", "each", "bytes", "algbw", "waited for members"], run.collectives.map((line) => [
    named(line, longestCall, "collective"), line.calls.toLocaleString("en"), seconds(line.seconds), `${seconds(line.low, 3)} - ${seconds(line.high, 3)}`, seconds(line.seconds / line.calls), size(line.nbytes), line.seconds ? rate(line.nbytes / line.seconds, "B/s") : "", seconds(line.waited),
  ]));
  if (!run.collectives.length) at("collectives").replaceChildren(element("p", { class: "hint" }, "None ran."));
  at("step-part").hidden = !run.steps.length;
  const part = (value) => (value === null ? "" : share(value, 1));
  table(at("step-times"), ["step", "time", "compute", "communication", "idle", "model FLOPs", "tokens"], run.steps.map((step) => [
    String(step.number), seconds(step.seconds), part(step.compute), part(step.communication), part(step.idle), step.model_flops ? rate(step.model_flops, "FLOP") : "", step.tokens ? step.tokens.toLocaleString("en") : "",
  ]));
}

// Requests of a serving engine: a table of times, and what its steps and its cache were used for over time.
function showServing(run) {
  const found = run.serving;
  at("serving").hidden = !found;
  if (!found) return;
  const times = [["time to first token", found.ttft], ["time per output token", found.tpot], ["inter-token latency", found.itl], ["latency", found.latency]];
  table(at("serving-times"), ["", "mean", "p50", "p90", "p99", "most"], times.filter(([, each]) => each).map(([name, each]) => [
    name, ...["mean", "p50", "p90", "p99", "most"].map((part) => seconds(each[part])),
  ]));
  const good = found.goodput, count = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });
  at("serving-words").textContent = `${counted(found.requests, "request")}, ${count(found.requests_per_second)} requests/s, ${count(found.generated_tokens_per_second)} generated tokens/s, ${count(found.generated_tokens_per_second_per_gpu)} per GPU; ${counted(found.steps, "step")}, ${counted(found.preemptions, "preemption")}` + (good ? `; goodput ${count(good.requests_per_second)} requests/s, ${share(good.share, 1)} of them` : "");
  at("serving-chart").hidden = !found.of_steps.length;
  if (!found.of_steps.length) return;
  // Above, prefill, which is of thousands of tokens; below, what is of tens. A step's tokens are of the time until its end,
  // and what was in the engine at its end is until the next one's.
  const part = (name, tint, value, { step = "end", below = 1, axis: y = below, dashed = false } = {}) => ({
    name, type: "line", step, symbol: "none", tint, xAxisIndex: below, yAxisIndex: y, lineStyle: { width: 1.5, type: dashed ? "dashed" : "solid" }, data: found.of_steps.map((each) => [each.at, value(each)]),
  });
  const series = [
    part("prefill tokens of a step", "gemm", (each) => each.prefill_tokens, { step: "start", below: 0 }), part("decode tokens of a step", "decoding", (each) => each.decode_tokens, { step: "start" }),
    part("running requests", "math", (each) => each.running), part("waiting requests", "path", (each) => each.waiting),
  ];
  if (found.blocks) series.push(part("cache used, %", "other", (each) => (100 * each.blocks_used) / found.blocks, { axis: 2, dashed: true }));
  const box = at("serving-chart");
  chartIn(box, 400, () => {
    const { top, legend } = legendOver(series.map(({ name }) => name), box.clientWidth), side = { left: 56, right: found.blocks ? 48 : 24 };
    const x = { type: "value", min: "dataMin", max: "dataMax", splitNumber: box.clientWidth < 600 ? 3 : 6 }, format = { showMinLabel: false, formatter: inOneUnit(found.of_steps.at(-1).at) }, whole = { minInterval: 1 };
    return {
      grid: [{ ...side, top, height: 110 }, { ...side, top: top + 150, bottom: 30 }], legend, tooltip: { trigger: "axis", confine: true }, axisPointer: { link: [{ xAxisIndex: "all" }] },
      xAxis: [axis("", { ...x, gridIndex: 0, axisLabel: { ...format, show: false } }), axis("", { ...x, gridIndex: 1, axisLabel: format })],
      yAxis: [
        axis("tokens", { type: "value", gridIndex: 0, ...whole }), axis("tokens, requests", { type: "value", gridIndex: 1, ...whole, nameTextStyle: { color: colour("soft"), align: "left", padding: [0, 0, 0, -40] } }),
        ...(found.blocks ? [axis("%", { type: "value", gridIndex: 1, position: "right", min: 0, max: 100, splitLine: { show: false } })] : []),
      ],
      series: series.map(({ tint, ...each }) => ({ ...each, color: colour(tint) })),
    };
  });
}

// Flame view: boxes from the outermost call down; a box is as wide as its share of the one that fills the view.
function showFlame(run) {
  at("flame").hidden = !run.flame.length;
  if (!run.flame.length) return;
  const nodes = run.flame.map(([parent, name, kind, took, calls], place) => ({ place, parent, name, kind, took, calls, children: [] }));
  const root = { place: -1, name: "all", kind: "", took: 0, calls: 0, children: [], parent: null };
  for (const node of nodes) (node.parent < 0 ? root : nodes[node.parent]).children.push(node);
  root.took = root.children.reduce((sum, node) => sum + node.took, 0);
  root.calls = root.children.reduce((sum, node) => sum + node.calls, 0);
  let seen = root, marked = null, boxes = [], depth = 1;
  const tints = { compute: "gemm", communication: "collective", copy: "dma" };
  const lay = () => {
    boxes = [];
    depth = 1;
    const put = (node, level, begin) => {
      const end = begin + node.took / seen.took;
      if (end - begin < 0.0008) return;
      depth = Math.max(depth, level + 1);
      boxes.push({ node, level, begin, end });
      let left = begin;
      for (const child of node.children) { put(child, level + 1, left); left += child.took / seen.took; }
    };
    put(seen, 0, 0);
  };
  lay();
  const height = () => Math.min(depth, 28) * 21 + 12, box = at("flame-chart");
  const shown = chartIn(box, height(), () => ({
    grid: { left: 0, right: 0, top: 4, bottom: 4 }, xAxis: { show: false, min: 0, max: 1 }, yAxis: { show: false, min: 0, max: Math.min(depth, 28), inverse: true },
    tooltip: { formatter: ({ dataIndex }) => { const { node } = boxes[dataIndex]; return echarts.format.encodeHTML(`${node.name}`) + `<br>${seconds(node.took)}, ${share(node.took, root.took)}, ${counted(node.calls, "operation")}`; }, confine: true },
    series: [{
      type: "custom", data: boxes.map(({ begin, level }) => [begin, level]), encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const { node, level, begin, end } = boxes[params.dataIndex], [x, y] = api.coord([begin, level]), width = api.coord([end, level])[0] - x, high = api.size([0, 1])[1];
        const tint = node.kind ? colour(tints[node.kind] ?? "kernel") : level ? colour("line") : colour("band");
        return { type: "rect", shape: { x, y, width: Math.max(width - 1, 0.5), height: high - 1.5 }, style: { fill: tint, stroke: colour("text"), lineWidth: node === marked ? 2 : 0 }, z2: node === marked ? 1 : 0, textConfig: { position: "insideLeft", distance: 5 }, textContent: width > 30 ? { style: { text: shortPlace(node.name), fill: node.kind ? textOn(tint) : colour("text"), fontSize: 11, width: width - 10, overflow: "truncate", ellipsis: ".." } } : undefined };
      },
    }],
  }));
  const above = (node) => (node === root ? root : node.parent < 0 ? root : nodes[node.parent]);
  const look = (node) => {
    seen = node;
    lay();
    box.style.height = `${height()}px`;
    shown.paint(); // first: what is drawn anew at another size are these boxes
    shown.chart.resize();
  };
  shown.chart.on("click", ({ dataIndex }) => {
    const { node, level } = boxes[dataIndex];
    look(level === 0 ? above(node) : node);
  });
  const mark = (node) => {
    marked = node;
    at("flame-words").textContent = `${node.name}: ${seconds(node.took)}, ${share(node.took, root.took)}, ${counted(node.calls, "operation")}`;
    shown.paint();
  };
  const beside = (step) => {
    const { level } = boxes.find(({ node }) => node === marked), row = boxes.filter((each) => each.level === level);
    return row[Math.max(0, Math.min(row.length - 1, row.findIndex(({ node }) => node === marked) + step))].node;
  };
  const drawn = (node) => boxes.some((each) => each.node === node);
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const now = marked && drawn(marked) ? marked : null;
    const does = {
      ArrowDown: () => mark(now ? (now.children.find(drawn) ?? now) : seen), ArrowUp: () => mark(now && now !== seen ? above(now) : seen),
      ArrowLeft: () => mark(now ? beside(-1) : seen), ArrowRight: () => mark(now ? beside(1) : seen),
      Enter: () => now && look(now), Escape: () => look(above(seen)),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
}

function showRoofline(run) {
  const dots = new Map();
  for (let i = 0; i < run.type.length; i++) {
    const [name, , nbytes, place] = run.types[run.type[i]], detail = run.details[place], took = (run.end[i] - run.begin[i]) * 1e-9;
    if (!detail.flops || !nbytes || !took || run.lanes.length === 0) continue;
    const key = `${name} ${detail.shapes ?? ""}`, dot = dots.get(key) ?? { name, shapes: detail.shapes ?? "", flops: 0, nbytes: 0, took: 0, calls: 0 };
    dot.flops += detail.flops; dot.nbytes += nbytes; dot.took += took; dot.calls += 1;
    dots.set(key, dot);
  }
  const all = [...dots.values()], { matrix = {}, memory = 0 } = run.peaks;
  at("roofline").hidden = !all.length || !memory;
  if (at("roofline").hidden) return;
  const most = Math.max(...all.map((dot) => dot.took)), used = new Set(all.flatMap((dot) => dot.shapes.match(/bfloat16|float16|float32|float8/g) ?? []));
  const short = { bfloat16: "bf16", float16: "fp16", float32: "fp32", float8: "fp8" }, formats = [...used].map((name) => short[name]).map((name) => (name === "fp32" && !matrix.fp32 ? "tf32" : name));
  const lines = Object.entries(matrix).filter(([name]) => formats.includes(name) || (!formats.length && name === "bf16"));
  const least = Math.min(...all.map((dot) => dot.flops / dot.nbytes), 1) / 2, top = Math.max(...all.map((dot) => dot.flops / dot.nbytes), ...lines.map(([, peak]) => (4 * peak) / memory));
  const low = Math.min(...all.map((dot) => dot.flops / dot.took), least * memory) / 2;
  chartIn(at("roofline-chart"), 340, () => ({
    grid: { left: 80, right: 40, top: 30, bottom: 44 },
    xAxis: axis("FLOP per byte", { type: "log", min: 10 ** Math.floor(Math.log10(least)), max: 10 ** Math.ceil(Math.log10(top)), nameLocation: "middle", nameGap: 26 }),
    yAxis: axis("", { type: "log", min: 10 ** Math.floor(Math.log10(low)), axisLabel: { formatter: (value) => rate(value, "FLOP/s") } }),
    tooltip: { confine: true, formatter: ({ data }) => (data.dot ? echarts.format.encodeHTML(`${data.dot.name} ${data.dot.shapes}`) + `<br>${counted(data.dot.calls, "call")}, ${seconds(data.dot.took)}, ${rate(data.dot.flops / data.dot.took, "FLOP/s")}` : "") },
    series: [
      ...lines.map(([name, peak]) => ({
        type: "line", silent: true, symbol: "none", lineStyle: { color: colour("soft"), width: 1.5 }, endLabel: { show: true, formatter: name, color: colour("soft") },
        data: [[10 ** Math.floor(Math.log10(least)), 10 ** Math.floor(Math.log10(least)) * memory], [peak / memory, peak], [10 ** Math.ceil(Math.log10(top)), peak]],
      })),
      { type: "scatter", itemStyle: { color: colour("gemm"), opacity: 0.75 }, data: all.map((dot) => ({ value: [dot.flops / dot.nbytes, dot.flops / dot.took], symbolSize: 6 + 22 * Math.sqrt(dot.took / most), dot })) },
    ],
  }));
}

// Bytes by what they are of, largest first; bars are shares of the whole.
function sizesTable(box, title, rows, whole) {
  table(box, [title, "bytes", "share"], rows.map(([name, value]) => [element("td", { title: name }, shortPlace(name), element("i", { class: "bar", style: `width:${(100 * value) / (whole || 1)}%` })), size(value), share(value, whole)]), 10);
}

const USES = { parameters: "gemm", buffers: "launch", gradients: "math", "optimizer state": "dma", "unsharded parameters": "attention", "communication buffers": "collective", activations: "path", temporaries: "other", workspaces: "match" };

function showMemory(run) {
  at("memory").hidden = !run.memory.length;
  if (!run.memory.length) return;
  const choice = at("memory-rank");
  choice.replaceChildren(...run.memory.map((each, place) => element("option", { value: place }, `${each.rank}${run.memory.filter((other) => other.rank === each.rank).length > 1 ? `, device ${each.device}` : ""}`)));
  choice.value = run.memory.reduce((found, each, place) => (each.allocated > run.memory[found].allocated ? place : found), 0);
  const unit = SIZES.find(([least]) => Math.max(...run.memory.map((each) => each.allocated)) >= least) ?? SIZES.at(-1);
  const shown = chartIn(at("memory-chart"), 320, () => {
    const memory = run.memory[choice.value], room = memory.limit ?? memory.capacity, near = memory.allocated > room / 4, moments = [...memory.moments, Math.max(run.seconds, memory.moments.at(-1) ?? 0)];
    const { top, legend } = legendOver(Object.keys(memory.categories), at("memory-chart").clientWidth);
    return {
      grid: { left: 64, right: 20, top, bottom: 34 }, legend,
      tooltip: { trigger: "axis", confine: true, valueFormatter: (value) => size(value * unit[0]) },
      xAxis: axis("", { type: "value", min: 0, max: run.seconds || null, axisLabel: { formatter: inOneUnit(run.seconds) } }),
      yAxis: axis(unit[1], { type: "value", max: near ? room / unit[0] : null, axisLabel: { formatter: (value) => parseFloat(value.toPrecision(3)).toLocaleString("en") } }),
      dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: "shift" }],
      series: Object.entries(memory.categories).map(([name, values], number) => ({
        name, type: "line", step: "end", stack: "all", symbol: "none", lineStyle: { width: 0 }, areaStyle: { opacity: 0.85 }, color: colour(USES[name] ?? "other"), data: moments.map((moment, i) => [moment, values[Math.min(i, values.length - 1)] / unit[0]]), // what is in use last stays so
        markLine: number ? undefined : { silent: true, precision: 15, symbol: "none", label: { color: colour("soft"), formatter: "{b}", position: "insideEndTop" }, lineStyle: { color: colour("alert") }, data: [{ name: "peak", xAxis: memory.peak_time }, ...(near ? [{ name: "capacity", yAxis: room / unit[0] }] : [])] },
      })),
    };
  });
  const tell = () => {
    const memory = run.memory[choice.value], stated = Object.entries(memory.stated).map(([name, value]) => `${name} ${size(value)}`).join(", ");
    at("memory-words").textContent = `Allocated at most ${size(memory.allocated)}, at ${seconds(memory.peak_time)} in step ${memory.peak_step}, ${shortPlace(memory.peak_place)}; reserved at most ${size(memory.reserved)}${memory.limit === null ? "" : `, of ${size(memory.limit)}`}; the device must have ${size(memory.device_bytes)}, and has ${size(memory.capacity)}.${stated ? ` Stated besides what is reserved: ${stated}.` : ""}`;
    at("at-peak").replaceChildren(...Object.entries(memory.at_peak).filter(([, rows]) => rows.length).map(([title, rows]) => {
      const box = element("div"), part = element("div", {}, element("h3", {}, `In use at the peak, by ${title}`), box);
      sizesTable(box, title, rows, memory.allocated);
      return part;
    }));
  };
  choice.addEventListener("change", () => { shown.paint(); tell(); });
  tell();
}

// What operations take in two runs, by name: those that differ most first.
function compared(before, now) {
  const rows = new Map(), row = (line) => rows.get(`${line.kind} ${line.name}`) ?? { name: line.name, kind: line.kind, before: 0, now: 0, callsBefore: 0, callsNow: 0 };
  for (const [run, took, calls] of [[before, "before", "callsBefore"], [now, "now", "callsNow"]]) {
    for (const line of [...run.kernels, ...run.collectives]) {
      const found = row(line);
      found[took] += line.seconds;
      found[calls] += line.calls;
      rows.set(`${line.kind} ${line.name}`, found);
    }
  }
  return [...rows.values()].sort((a, b) => Math.abs(b.now - b.before) - Math.abs(a.now - a.before) || (a.name < b.name ? -1 : 1));
}

function showComparison(run) {
  at("compare").hidden = !run.lanes.length;
  const more = (now, before) => (Math.abs(now - before) < 5e-10 ? "0" : `${now > before ? "+" : "\u2212"}${seconds(Math.abs(now - before))}`), times = (now, before) => (before ? `x ${(now / before).toFixed(3)}` : "new");
  const show = async (file) => {
    const earlier = await Run.ofPage(await file.text()), rows = compared(earlier, run);
    at("compare-words").textContent = `${earlier.title}: ${seconds(earlier.seconds)}, now ${seconds(run.seconds)} (${more(run.seconds, earlier.seconds)}, ${times(run.seconds, earlier.seconds)}). Operations: seconds over all ranks.`;
    table(at("compared"), ["operation", "before", "now", "difference", "", "calls before", "calls now"], rows.map((row) => [
      row.name, seconds(row.before), seconds(row.now), element("td", { style: row.now > row.before * 1.001 ? "color:var(--alert)" : "" }, more(row.now, row.before)), times(row.now, row.before), row.callsBefore.toLocaleString("en"), row.callsNow.toLocaleString("en"),
    ]), 25);
  };
  at("earlier").addEventListener("change", ({ target }) => {
    show(target.files[0]).catch((error) => {
      at("compare-words").textContent = `${target.files[0]?.name ?? ""}: ${error.message}`;
      at("compared").replaceChildren();
    });
  });
}
