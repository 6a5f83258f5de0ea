"use strict";
// Links: what they carried over time, as a graph and as rows; bandwidths beside their limits (kernbench/html_report/links.py).

function showLinks(run) {
  const traffic = run.traffic;
  at("links").hidden = !traffic || !traffic.links.length;
  at("bandwidth-part").hidden = !traffic?.bandwidths.length;
  if (traffic?.bandwidths.length) showBandwidths(traffic.bandwidths);
  if (at("links").hidden) return;
  const bins = run.linkBytes.length / traffic.links.length, of = new Map(traffic.links.map(([name], row) => [name, row]));
  const carried = (row, first, last) => {
    let sum = 0;
    for (let bin = first; bin < last; bin++) sum += run.linkBytes[row * bins + bin];
    return sum;
  };
  const used = (row, first, last) => carried(row, first, last) / (traffic.links[row][2] * traffic.width * (last - first));
  const tint = (value) => ["wait", "math", "collective", "dma", "alert"][value < 0.005 ? 0 : value < 0.25 ? 1 : value < 0.5 ? 2 : value < 0.75 ? 3 : 4];
  legend(at("link-legend"), [["wait", "idle"], ["math", "under a quarter"], ["collective", "under a half"], ["dma", "under three quarters"], ["alert", "more, of the link's bandwidth"]].map(([name, label]) => [`background:var(--${name})`, label]));
  const moment = at("link-moment"), whole = () => +moment.value === 0;
  moment.max = bins;
  const span = () => (whole() ? [0, bins] : [+moment.value - 1, +moment.value]);
  let chosen = null;
  const words = () => {
    const [first, last] = span(), when = whole() ? "the whole run" : `${nanos(1e9 * first * traffic.width)} to ${nanos(1e9 * last * traffic.width)}`;
    at("link-when").textContent = when;
    if (chosen === null) return;
    const [name, , bandwidth] = traffic.links[chosen];
    at("link-words").textContent = `${name}: ${Math.round(carried(chosen, first, last)).toLocaleString("en")} bytes (${size(carried(chosen, first, last))}) in ${when}, ${rate(used(chosen, first, last) * bandwidth, "B/s")} on average, ${share(used(chosen, first, last), 1)} of ${rate(bandwidth, "B/s")}`;
  };
  const choose = (row) => { chosen = row; words(); };
  const graph = drawTopology(traffic, of, (row) => used(row, ...span()), tint, choose);
  const seen = [...traffic.links.keys()].slice(0, 48).sort((a, b) => traffic.links[a][0].localeCompare(traffic.links[b][0], "en", { numeric: true }));
  const rows = chartIn(at("link-rows"), Math.max(seen.length * 15 + 60, 140), () => ({
    grid: { left: 132, right: 16, top: 8, bottom: 32 },
    xAxis: axis("", { type: "value", min: 0, max: bins * traffic.width, axisLabel: { formatter: (value) => seconds(value, 3) }, splitLine: { show: false } }),
    yAxis: { type: "category", inverse: true, data: seen.map((row) => traffic.links[row][0]), axisLabel: { color: colour("soft"), fontSize: 10.5, interval: 0 }, axisLine: { show: false }, axisTick: { show: false } },
    tooltip: { confine: true, formatter: ({ data: [first, line, value] }) => `${echarts.format.encodeHTML(traffic.links[seen[line]][0])}<br>${seconds(first)}: ${rate(value * traffic.links[seen[line]][2], "B/s")}, ${share(value, 1)}` },
    series: [{
      type: "custom", encode: { x: 0, y: 1 }, data: seen.flatMap((row, line) => Array.from({ length: bins }, (_, bin) => [bin * traffic.width, line, used(row, bin, bin + 1)])).filter(([, , value]) => value >= 0.005),
      renderItem: (params, api) => {
        const [x, y] = api.coord([api.value(0), api.value(1)]), [right] = api.coord([api.value(0) + traffic.width, 0]), high = api.size([0, 1])[1];
        return { type: "rect", shape: { x, y: y - high / 2 + 1, width: Math.max(right - x + 0.5, 1), height: high - 2 }, style: { fill: colour(tint(api.value(2))) } };
      },
    }],
  }));
  rows.chart.on("click", ({ data: [first, line] }) => {
    moment.value = Math.round(first / traffic.width) + 1;
    chosen = seen[line];
    moment.dispatchEvent(new Event("input"));
  });
  moment.addEventListener("input", () => { words(); graph?.paint(); });
  words();
  const notes = [seen.length < traffic.links.length && `Rows: the ${seen.length} links that carried most, of ${traffic.links.length + traffic.left_out}.`, traffic.left_out && `${traffic.left_out} links that carried less are not shown.`, traffic.coarse && `Members of ${traffic.coarse.toLocaleString("en")} collectives are taken to have come together.`, traffic.graph.of_nodes > traffic.graph.nodes && `The graph shows ${traffic.graph.nodes} of ${traffic.graph.of_nodes} nodes.`].filter(Boolean);
  at("link-notes").textContent = `What collectives and messages moved; copies between host and device, and what kernels read of other devices, are not in it. What a vendor's library sends is paced over the whole of a collective: for a moment within one, a link may seem to carry more than it can. ${notes.join(" ")}`;
}

// SIPs, switches and NICs, and the links between them, in the colour of the share of their bandwidth that is used.
function drawTopology(traffic, of, usedBy, tint, choose) {
  const { points, edges } = traffic.graph, xs = points.map(([, x]) => x), ys = points.map(([, , y]) => y), low = Math.min(...ys), tall = Math.max(...ys) - low, small = points.length > 40;
  const shown = chartIn(at("topology-chart"), Math.min(Math.max(tall * 78 + 70, 150), 480), () => ({
    grid: { left: 30, right: 30, top: 30, bottom: 34 }, xAxis: { show: false, min: Math.min(...xs), max: Math.max(...xs, Math.min(...xs) + 1e-3) }, yAxis: { show: false, inverse: true, min: low, max: low + Math.max(tall, 1e-3) },
    tooltip: { confine: true, formatter: ({ dataType, data }) => (dataType === "edge" && data.link ? `${echarts.format.encodeHTML(data.link)}: ${of.has(data.link) ? share(usedBy(of.get(data.link)), 1) : "no traffic"}` : "") },
    series: [{
      type: "graph", coordinateSystem: "cartesian2d", edgeSymbol: ["none", "arrow"], edgeSymbolSize: small ? 4 : 6,
      data: points.map(([name, x, y]) => ({ id: name, name, value: [x, y], symbol: name.startsWith("sip") ? "roundRect" : "circle", symbolSize: name.startsWith("sip") ? (small ? 12 : 26) : small ? 7 : 15, itemStyle: { color: colour(name.startsWith("sip") ? "gemm" : "launch") }, label: { show: !small || !name.startsWith("nic"), position: name.startsWith("sip") && !small ? "inside" : "bottom", formatter: name.startsWith("sip") && !small ? name.slice(3) : name, color: name.startsWith("sip") && !small ? "#fff" : colour("soft"), fontSize: small ? 8 : 10.5 } })),
      links: edges.map(([source, target, link]) => {
        const value = of.has(link) ? usedBy(of.get(link)) : 0;
        return { source, target, link, symbol: link ? ["none", "arrow"] : ["none", "none"], lineStyle: { color: colour(link ? tint(value) : "line"), width: link && value >= 0.005 ? 1.5 + 3 * Math.min(value, 1) : 1, opacity: 1, curveness: link ? 0.12 : 0, type: link ? "solid" : "dotted" } };
      }),
    }],
  }));
  shown.chart.on("click", ({ dataType, data }) => dataType === "edge" && of.has(data.link) && choose(of.get(data.link)));
  return shown;
}

// busbw reached beside what the links allow, as nccl-tests counts both.
function showBandwidths(rows) {
  table(at("bandwidths"), ["collective", "algorithm", "ranks", "nodes", "size", "calls", "each", "algbw", "busbw", "limit of the links", "reached"], rows.map((row) => [
    element("td", { title: row.name }, row.name, ...(row.limit ? [element("i", { class: "bar", style: `width:${Math.min((100 * row.busbw) / row.limit, 100)}%;background:var(--collective)` })] : [])),
    row.ways.join(", "), String(row.members), String(row.nodes), size(row.nbytes), row.calls.toLocaleString("en"), seconds(row.seconds / row.calls), rate(row.algbw, "B/s"), rate(row.busbw, "B/s"), row.limit ? rate(row.limit, "B/s") : "", row.limit ? share(row.busbw, row.limit) : "",
  ]));
  const names = [...new Set(rows.map((row) => row.name))], tints = ["collective", "gemm", "dma", "attention", "path", "other", "math", "launch"], logs = { type: "log", minorSplitLine: { show: false } };
  const limits = rows.filter((row) => row.limit);
  const frame = () => {
    const { top, legend } = legendOver([...names, "limit"], at("bandwidth-chart").clientWidth);
    return { grid: { left: 76, right: 24, top, bottom: 40 }, legend };
  };
  chartIn(at("bandwidth-chart"), 300, () => ({
    ...frame(),
    xAxis: axis("size", { ...logs, logBase: 1024, axisLabel: { formatter: (value) => size(value) }, nameLocation: "middle", nameGap: 26 }), yAxis: axis("busbw", { ...logs, axisLabel: { formatter: (value) => rate(value, "B/s") } }),
    tooltip: { confine: true, formatter: ({ data: { row } }) => (row ? `${echarts.format.encodeHTML(row.name)} of ${size(row.nbytes)} on ${row.members} ranks<br>busbw ${rate(row.busbw, "B/s")}${row.limit ? ` of ${rate(row.limit, "B/s")}, ${share(row.busbw, row.limit)}` : ""}` : "") },
    series: [
      ...names.map((name, i) => ({ name, type: "scatter", symbolSize: 11, color: colour(tints[i % tints.length]), data: rows.filter((row) => row.name === name).map((row) => ({ value: [row.nbytes, row.busbw], row })) })),
      { name: "limit", type: "scatter", symbol: "rect", symbolSize: [16, 3], color: colour("alert"), data: limits.map((row) => ({ value: [row.nbytes, row.limit], row })) },
    ],
  }));
}
