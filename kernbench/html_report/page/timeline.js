"use strict";
// The timeline: a line for each stream of the ranks shown. Spans are drawn one by one while they are few; seen from afar a
// line shows, pixel by pixel, for which share of the time it is busy with what. ECharts has the axes, the zoom, and what lies
// over the lines; the lines themselves are written into a bitmap, which it shows as one picture: what that costs grows with the
// pixels and not with the operations. The overview below has a tick for each place where something was found.

const LINE = 19, MOST_HEIGHT = 600, LABELS = 300, LINKS = 200, THIN = 3, MARKS = 1000, OVERVIEW = 18;

function registerShapes() {
  const { extendShape, registerShape } = echarts.graphic;
  const strokes = (path, { values }) => {
    for (let i = 0; i < values.length; i += 4) {
      path.moveTo(values[i], values[i + 1]);
      path.lineTo(values[i + 2], values[i + 3]);
    }
  };
  registerShape("kb-strokes", extendShape({ shape: { values: [] }, buildPath: strokes }));
}

// The next power of two.
const nice = (value) => 2 ** Math.max(0, Math.ceil(Math.log2(value)));

// Of a rank's streams on one line, what covers what: computation hides communication.
const onTop = (lane) => (lane.name === "host" ? 0 : lane.name === "compute" ? 2 : 1);

class Timeline {
  // `chosen` is called with an operation or -1, `summed` with the two ends of a range.
  constructor(run, box, chosen, summed) {
    Object.assign(this, { run, box, chosen, summed, selected: -1, range: null, matches: null, cursor: 0, view: "" });
    this.chart = echarts.init(box, null, { renderer: "canvas" });
    this.bitmap = new Bitmap();
    this.window = [0, run.length];
    this.groupOf = new Map();
    run.groups.forEach(([ranks], group) => ranks.forEach((rank) => this.groupOf.set(rank, group)));
    this.chart.on("datazoom", () => this.moved());
    const surface = this.chart.getZr();
    surface.on("click", (event) => this.pick(this.hit(event.offsetX, event.offsetY)));
    surface.on("mousemove", (event) => this.point(event));
    surface.on("globalout", () => (at("tip").hidden = true));
    box.addEventListener("keydown", (event) => this.key(event));
    this.selectRanges();
    new ResizeObserver(() => this.resize()).observe(box);
  }

  views() {
    const { groups, lanes } = this.run, ranks = new Set(lanes.map((lane) => lane.rank)).size;
    const views = [["ranks", ranks > 1 ? "every rank" : "the rank"]];
    if (groups.length && groups.length < ranks) views.push(["groups", "groups of ranks that do the same"]);
    if (ranks > 1) views.push(["lines", "a line for each rank"]);
    const first = ranks <= 8 || views.length < 3 ? (ranks > 64 ? "lines" : "ranks") : "groups";
    return { views, first };
  }

  show(view) {
    this.view = view;
    const { lanes, groups } = this.run;
    if (view === "lines") {
      const byRank = new Map();
      for (const lane of lanes) byRank.set(lane.rank, [...(byRank.get(lane.rank) ?? []), lane]);
      this.lines = [...byRank].map(([rank, parts]) => [rank, parts.sort((a, b) => onTop(a) - onTop(b))]).map(([rank, parts]) => ({ label: this.run.ownerOf(parts[0]), name: "", parts, rank }));
    } else {
      const shown = view === "groups" ? new Map(groups.map(([ranks, rank]) => [rank, ranks])) : null;
      const wanted = lanes.filter((lane) => lane.rank === null || !shown || shown.has(lane.rank));
      this.lines = wanted.map((lane, i) => {
        const ranks = shown?.get(lane.rank), first = i === 0 || wanted[i - 1].rank !== lane.rank;
        const who = ranks && ranks.length > 1 ? `${ranks.length} ranks` : this.run.ownerOf(lane);
        return { label: first ? who : "", who, name: lane.name, parts: [lane], rank: lane.rank, first };
      });
    }
    this.lineOfLane = new Map();
    this.lineOfName = new Map();
    this.lines.forEach((line, i) => line.parts.forEach((lane) => {
      this.lineOfLane.set(lane.place, i);
      this.lineOfName.set(`${lane.rank} ${lane.name}`, i);
    }));
    this.lineOfPath = Int32Array.from(this.run.path.row, (row) => this.lineOf(lanes[row]));
    this.cursor = Math.min(this.cursor, this.lines.length - 1);
    this.setOption();
  }

  // The line on which a lane is, or that of the rank which stands for its own; -1: none.
  lineOf(lane) {
    const own = this.lineOfLane.get(lane.place);
    if (own !== undefined) return own;
    const group = this.run.groups[this.groupOf.get(lane.rank)];
    if (!group) return -1;
    return this.lineOfName.get(`${group[1]} ${lane.name}`) ?? -1;
  }

  setOption() {
    const all = this.lines.length, narrow = this.box.clientWidth < 600;
    const least = this.view === "lines" ? Math.min(LINE, Math.max(Math.floor(MOST_HEIGHT / all), 1)) : LINE, every = nice(14 / least);
    const height = Math.min(all * least, MOST_HEIGHT), fit = Math.max(Math.floor(height / least), 1), scrolls = all > fit;
    const text = colour("text"), soft = colour("soft"), line = colour("line");
    this.box.style.height = `${Math.round(height) + 74}px`;
    this.chart.resize();
    const slider = {
      type: "slider", filterMode: "none", borderColor: line, fillerColor: `${colour("accent")}22`, backgroundColor: colour("band"),
      handleStyle: { color: colour("card"), borderColor: soft }, moveHandleStyle: { color: soft, opacity: 0.5 },
      dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } }, brushSelect: false, textStyle: { color: soft },
    };
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: "inherit" },
      aria: { enabled: true, label: { description: `Timeline of ${all} lines over ${nanos(this.run.length)}.` } },
      grid: { left: narrow ? 86 : 128, right: scrolls ? 30 : 12, top: 26, bottom: 46 },
      xAxis: {
        type: "value", min: 0, max: this.run.length, position: "top", splitNumber: narrow ? 3 : 8,
        axisLabel: { color: soft, fontSize: 11, hideOverlap: true, showMaxLabel: false, formatter: (value) => this.tick(value) },
        axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line, opacity: 0.6 } },
      },
      yAxis: {
        type: "category", inverse: true, data: this.lines.map((_, i) => i), axisTick: { show: false }, axisLine: { lineStyle: { color: line } },
        axisLabel: {
          color: soft, fontSize: 11, interval: (place) => place % every === 0, margin: 6,
          formatter: (i) => this.label(this.lines[i], narrow),
          rich: { who: { color: text, fontWeight: 600, fontSize: 11.5, width: narrow ? 32 : 58, align: "left" }, what: { color: soft, fontSize: 11, width: narrow ? 42 : 56, align: "right" } },
        },
      },
      dataZoom: [
        { ...slider, id: "time", xAxisIndex: 0, startValue: this.window[0], endValue: this.window[1], minValueSpan: 10, height: OVERVIEW, bottom: 8, labelFormatter: "", realtime: true, throttle: 0 },
        { id: "drag", type: "inside", xAxisIndex: 0, filterMode: "none", throttle: 0, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: "shift", moveOnMouseMove: true, minValueSpan: 10 },
        ...(scrolls ? [
          { ...slider, id: "ranks", yAxisIndex: 0, orient: "vertical", width: 14, right: 6, startValue: 0, endValue: fit - 1, zoomLock: true, showDetail: false, throttle: 0, handleSize: 0 },
        ] : []),
      ],
      series: [
        { id: "lines", type: "custom", silent: true, clip: true, data: [[0, 0]], renderItem: (_, api) => this.drawLines(api) },
        { id: "over", type: "custom", silent: true, clip: true, data: [[0, 0]], renderItem: (params, api) => this.drawOver(api), z: 5 },
        this.steps(),
      ],
    }, { notMerge: true });
    this.tickOverview();
  }

  // Where each training step but the first begins: a dashed line, with its number below.
  steps() {
    const later = this.run.steps.filter(({ begin }) => begin > 0).slice(0, MARKS), every = nice(later.length / 12), soft = colour("soft");
    return {
      id: "steps", type: "line", silent: true, data: [],
      markLine: {
        silent: true, animation: false, symbol: "none", precision: 15, lineStyle: { type: "dashed", width: 1, color: soft, opacity: 0.8 },
        label: { position: "end", distance: 3, fontSize: 10.5, color: soft, formatter: ({ name }) => name },
        data: later.map(({ number, begin }, i) => ({ name: i % every ? "" : `step ${number}`, xAxis: begin * 1e9 })),
      },
    };
  }

  // Below, a tick in the overview for each place where something was found.
  tickOverview() {
    const { x, width } = this.chart.getModel().getComponent("grid").coordinateSystem.getRect(), top = this.chart.getHeight() - 8 - OVERVIEW, places = new Set();
    for (const spans of this.matches?.values() ?? []) for (const span of spans) places.add(Math.round(x + (this.run.begin[span] / this.run.length) * width));
    const values = [...places].flatMap((place) => [place + 0.5, top + 1, place + 0.5, top + OVERVIEW - 1]);
    this.chart.setOption({ graphic: [{ id: "ticks", type: "kb-strokes", silent: true, z: 50, shape: { values }, style: { stroke: colour("match"), lineWidth: 1, fill: null } }] });
    this.ticks = places.size;
  }

  label(line, narrow) {
    if (!line) return "";
    if (this.view === "lines") return line.label;
    const name = line.name.replace(/^.+ (\(\d+\))$/, "$1"); // a further row of a stream, or of requests, has its number alone
    return `{who|${line.label}}{what|${name.slice(0, narrow ? 7 : 10)}}`;
  }

  // Times on the axis, with as many digits as tell its ticks apart.
  tick(value) {
    const span = this.window[1] - this.window[0], [unit, name] = TIMES.find(([least]) => this.window[1] * 1e-9 >= least) ?? TIMES[3];
    const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10((span * 1e-9) / unit / 8))));
    return value ? `${((value * 1e-9) / unit).toFixed(digits)} ${name}` : "0";
  }

  frame(api) {
    const left = api.coord([this.window[0], 0])[0], right = api.coord([this.window[1], 0])[0];
    return { left, width: right - left, scale: (right - left) / (this.window[1] - this.window[0]), height: Math.abs(api.size([0, 1])[1]) };
  }

  x(frame, moment) {
    return frame.left + (moment - this.window[0]) * frame.scale;
  }

  // All lines in view, as one picture.
  drawLines(api) {
    const frame = this.frame(api), { x, y, width, height } = this.chart.getModel().getComponent("grid").coordinateSystem.getRect();
    this.bitmap.begin(x, y, width, height);
    const first = Math.max(0, Math.floor(this.chart.convertFromPixel("grid", [x, y])[1])), labels = [];
    for (let place = first; place < this.lines.length; place++) {
      const middle = api.coord([this.window[0], place])[1];
      if (middle - frame.height / 2 > y + height) break;
      this.drawLine(frame, this.lines[place], middle, place, labels);
    }
    this.drawPath(frame, (place) => api.coord([this.window[0], place])[1], frame.height / 2);
    return { type: "image", style: { image: this.bitmap.end(labels), x, y, width, height } };
  }

  drawLine(frame, line, middle, place, labels) {
    const pad = frame.height > 8 ? 1.5 : frame.height > 2.5 ? 0.5 : 0, top = middle - frame.height / 2 + pad, high = frame.height - 2 * pad;
    if (line.first && place) this.bitmap.box(frame.left, top - pad, frame.width, 0.5, this.rule);
    for (const lane of line.parts) {
      const first = this.run.after(lane, this.window[0]), last = this.run.from(lane, this.window[1]);
      if (last - first <= frame.width * 1.5) this.drawSpans(frame, first, last, top, high, labels);
      else this.drawShares(frame, lane, top, high);
    }
    if (this.matches) this.drawMatches(frame, line, top, high);
  }

  drawSpans(frame, first, last, top, high, labels) {
    const { begin, end, type, kindOf, types } = this.run, named = high >= 11 && !this.matches;
    for (let i = first; i < last; i++) {
      if (end[i] === begin[i]) continue;
      const x = this.x(frame, Math.max(begin[i], this.window[0])), width = this.x(frame, Math.min(end[i], this.window[1])) - x, kind = kindOf[type[i]];
      this.bitmap.box(x, top, Math.max(width - (width > THIN ? 0.7 : 0), 0.5), high, this.inks[kind]);
      if (named && width > 34 && !UNNAMED.has(kind) && labels.length < LABELS) labels.push([x + 4, top + high / 2 + 0.5, width - 7, types[type[i]][0], this.texts[kind]]);
    }
  }

  drawShares(frame, lane, top, high) {
    const levels = this.run.levels(lane), one = this.view === "lines" && high < 12;
    const count = levels[0].find(Boolean).length;
    const level = Math.max(0, Math.min(levels.length - 1, Math.ceil(Math.log2(1 / ((this.run.length / count) * frame.scale)))));
    const bins = count >> level, width = this.run.length / bins, shares = levels[level];
    const first = Math.max(0, Math.floor(this.window[0] / width)), last = Math.min(bins, Math.ceil(this.window[1] / width));
    const kinds = [...CATEGORIES.keys()].filter((kind) => shares[kind]);
    let before = -1, from = 0;
    for (let bin = first; bin < last; bin++) {
      const x = this.x(frame, Math.max(bin * width, this.window[0])), right = this.x(frame, Math.min((bin + 1) * width, this.window[1]));
      let bottom = top + high, most = -1;
      for (const kind of kinds) {
        const part = shares[kind][bin];
        if (one) {
          if (part > 0.25 && (most < 0 || part > shares[most][bin])) most = kind;
        } else if (part > 0.02) {
          this.bitmap.box(x, bottom - part * high, right - x, part * high, this.inks[kind]);
          bottom -= part * high;
        }
      }
      if (most !== before || bin === last - 1) { // bins alike are one box
        if (before >= 0) this.bitmap.box(from, top, (most === before ? right : x) - from, high, this.inks[before]);
        if (most >= 0 && most !== before && bin === last - 1) this.bitmap.box(x, top, right - x, high, this.inks[most]);
        [before, from] = [most, x];
      }
    }
  }

  drawMatches(frame, line, top, high) {
    const { begin, end } = this.run;
    for (const lane of line.parts) {
      const spans = this.matches.get(lane.place) ?? [];
      let low = 0, high_ = spans.length, until = -1;
      while (low < high_) {
        const middle = (low + high_) >> 1;
        if (end[spans[middle]] <= this.window[0]) low = middle + 1; else high_ = middle;
      }
      for (; low < spans.length && begin[spans[low]] < this.window[1]; low++) {
        const x = this.x(frame, Math.max(begin[spans[low]], this.window[0])), right = this.x(frame, Math.min(end[spans[low]], this.window[1]));
        if (right < until + 0.5) continue;
        until = Math.max(right, x + 1);
        this.bitmap.box(x, top, until - x, high, this.found);
      }
    }
  }

  // Over the lines: the critical path, collectives' members, and the chosen operation.
  drawOver(api) {
    const frame = this.frame(api), children = [], half = frame.height / 2, middle = (line) => api.coord([this.window[0], line])[1];
    children.push({ type: "kb-strokes", shape: { values: this.links }, style: { stroke: colour("path"), lineWidth: 1, opacity: 0.55, fill: null } });
    if (this.selected >= 0) children.push(...this.drawChosen(frame, middle, half));
    if (this.range) {
      const { y, height } = this.chart.getModel().getComponent("grid").coordinateSystem.getRect(), [left, right] = this.range.map((moment) => this.x(frame, moment));
      children.push({ type: "rect", shape: { x: left, y, width: Math.max(right - left, 1), height }, style: { fill: `${colour("accent")}22`, stroke: colour("accent"), lineWidth: 1 } });
    }
    return { type: "group", children };
  }

  drawPath(frame, middle, half) {
    const { begin, length } = this.run.path, links = [], until = new Map(), thick = Math.min(3, half);
    let before = null;
    for (let i = 0; i < begin.length && begin[i] <= this.window[1]; i++) {
      const end = begin[i] + length[i], line = this.lineOfPath[i];
      if (end < this.window[0] || line < 0) {
        before = null;
        continue;
      }
      const x = this.x(frame, Math.max(begin[i], this.window[0])), right = this.x(frame, Math.min(end, this.window[1]));
      if (right > (until.get(line) ?? -1) + 0.4) {
        const y = middle(line) + half;
        this.bitmap.box(x, y - thick, Math.max(right - x, 0.8), thick, this.pathInk);
        until.set(line, right);
        if (before && before.line !== line && links.length <= 4 * LINKS) links.push(before.right, middle(before.line) + half, x, y);
      }
      before = { line, right };
    }
    this.links = links.length <= 4 * LINKS ? links : []; // so many would hide what they join
  }

  drawChosen(frame, middle, half) {
    const { run } = this, call = run.call[this.selected], spans = call ? run.members(call) : [this.selected], boxes = [], lines = [], heads = [];
    const last = spans.reduce((found, span) => (run.begin[span] > run.begin[found] ? span : found), spans[0]);
    const from = this.lineOf(run.laneOf(last)), startX = this.x(frame, run.begin[last]), startY = from < 0 ? 0 : middle(from);
    for (const span of spans) {
      const line = this.lineOf(run.laneOf(span));
      if (line < 0) continue;
      const x = this.x(frame, run.begin[span]), right = this.x(frame, run.end[span]), y = middle(line);
      boxes.push({ type: "rect", shape: { x, y: y - half + 0.5, width: Math.max(right - x, 2), height: Math.max(2 * half - 1, 1) }, style: { fill: "none", stroke: span === this.selected ? colour("text") : colour("path"), lineWidth: span === this.selected ? 2 : 1 } });
      if (span !== last && line !== from && from >= 0 && lines.length < 4 * 512) {
        lines.push(startX, startY, x, y);
        const slope = Math.atan2(y - startY, x - startX);
        for (const turn of [-0.45, 0.45]) heads.push(x, y, x - 7 * Math.cos(slope + turn), y - 7 * Math.sin(slope + turn));
      }
    }
    return [...boxes, { type: "kb-strokes", shape: { values: [...lines, ...heads] }, style: { stroke: colour("text"), lineWidth: 1, opacity: 0.7, fill: null } }];
  }

  // The operation at a pixel, or the nearest within three of it; -1: none.
  hit(x, y) {
    if (!this.chart.containPixel("grid", [x, y])) return -1;
    const [moment, place] = this.chart.convertFromPixel("grid", [x, y]), line = this.lines[Math.round(place)];
    if (!line) return -1;
    this.cursor = Math.round(place);
    const near = ((this.window[1] - this.window[0]) / this.box.clientWidth) * 3;
    let found = -1, distance = near;
    for (const lane of line.parts.length > 1 ? [...line.parts.slice(1), line.parts[0]] : line.parts) {
      for (let i = Math.max(this.run.after(lane, moment) - 1, lane.first); i < Math.min(this.run.from(lane, moment) + 1, lane.last); i++) {
        const away = Math.max(this.run.begin[i] - moment, moment - this.run.end[i], 0);
        if (away < distance) [found, distance] = [i, away];
      }
    }
    return found;
  }

  point(event) {
    const tip = at("tip"), span = this.hit(event.offsetX, event.offsetY);
    tip.hidden = span < 0;
    if (span < 0) return;
    tip.textContent = `${this.run.types[this.run.type[span]][0]}: ${nanos(this.run.end[span] - this.run.begin[span])}`;
    const { clientX = 0, clientY = 0 } = event.event ?? {};
    tip.style.left = `${Math.min(clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clientY + 16}px`;
  }

  // Dragging with Shift held selects a range, and does not move the view.
  selectRanges() {
    let from = null, dragged = false;
    const moment = (event) => Math.max(0, Math.min(this.chart.convertFromPixel("grid", [event.clientX - this.box.getBoundingClientRect().left, 0])[0], this.run.length));
    const draw = (event) => {
      const to = moment(event);
      dragged = true;
      this.range = [Math.min(from, to), Math.max(from, to)];
      this.redraw();
    };
    const done = (event) => {
      removeEventListener("mousemove", draw);
      if (dragged) this.sum(...this.range);
    };
    this.box.addEventListener("mousedown", (event) => {
      dragged = false;
      if (!event.shiftKey || event.button) return;
      event.stopPropagation();
      event.preventDefault();
      from = moment(event);
      addEventListener("mousemove", draw);
      addEventListener("mouseup", done, { once: true });
    }, true);
    this.box.addEventListener("click", (event) => dragged && event.stopPropagation(), true);
  }

  // Select a range: of it, `summed` shows what is in it.
  sum(begin, end) {
    this.selected = -1;
    this.range = [begin, end];
    this.redraw();
    this.summed(begin, end);
  }

  pick(span) {
    this.selected = span;
    this.range = null;
    this.redraw();
    this.chosen(span);
  }

  moved() {
    const { startValue, endValue } = this.chart.getModel().getComponent("dataZoom", 0).option;
    this.window = [startValue, Math.max(endValue, startValue + 1)];
  }

  redraw() {
    this.inks = this.matches ? this.pale : this.full;
    this.chart.setOption({ series: [{ id: "lines", data: [[0, 0]] }, { id: "over", data: [[0, 0]] }] });
  }

  look(begin, end) {
    const width = Math.max(Math.min(end - begin, this.run.length), 10), first = Math.max(0, Math.min(begin, this.run.length - width));
    this.window = [first, first + width];
    this.chart.dispatchAction({ type: "dataZoom", batch: [{ dataZoomId: "time", startValue: first, endValue: first + width }] });
  }

  zoom(factor) {
    const [begin, end] = this.window, middle = (begin + end) / 2, half = ((end - begin) / 2) * factor;
    this.look(middle - half, middle + half);
  }

  pan(share) {
    const way = (this.window[1] - this.window[0]) * share;
    this.look(this.window[0] + way, this.window[1] + way);
  }

  // Move there if the operation is not in view, and choose it.
  go(span) {
    if (span < 0) return;
    const { begin, end } = this.run, line = this.lineOf(this.run.laneOf(span));
    if (line >= 0) this.cursor = line;
    const took = Math.max(end[span] - begin[span], 1), width = this.window[1] - this.window[0];
    if (begin[span] < this.window[0] || end[span] > this.window[1] || took < width / 400) {
      const wide = took < width / 400 || took > width ? took * 12 : width;
      this.look((begin[span] + end[span] - wide) / 2, (begin[span] + end[span] + wide) / 2);
    }
    this.pick(span);
  }

  beside(step) {
    const lane = this.selected >= 0 ? this.run.laneOf(this.selected) : this.lines[this.cursor]?.parts.at(-1);
    if (!lane) return;
    const next = this.selected >= 0 ? this.selected + step : this.run.after(lane, this.window[0]);
    if (next >= lane.first && next < lane.last) this.go(next);
  }

  alongPath() {
    const { row, begin } = this.run.path, now = this.selected >= 0 ? this.run.begin[this.selected] : this.window[0] - 1;
    for (let i = 0; i < row.length; i++) {
      if (begin[i] > now + 0.5) {
        const lane = this.run.lanes[row[i]], span = this.run.after(lane, begin[i]);
        if (span < lane.last && span !== this.selected && this.run.begin[span] > now) return this.go(span);
      }
    }
    return undefined;
  }

  search(words) {
    const wanted = words.trim().toLowerCase(), { types, details, type, lanes } = this.run;
    this.matches = null;
    let count = 0, took = 0;
    if (wanted) {
      const known = details.map((detail) => JSON.stringify(detail).toLowerCase().includes(wanted));
      const fits = Uint8Array.from(types, ([name, , , detail]) => known[detail] || name.toLowerCase().includes(wanted));
      this.matches = new Map();
      for (const lane of lanes) {
        const spans = [];
        for (let i = lane.first; i < lane.last; i++) {
          if (fits[type[i]]) {
            spans.push(i);
            took += this.run.end[i] - this.run.begin[i];
          }
        }
        count += spans.length;
        if (spans.length) this.matches.set(lane.place, spans);
      }
    }
    this.redraw();
    this.tickOverview();
    return wanted ? { count, took } : null;
  }

  // Choose the first that was found, with the view moved there if it is elsewhere, and as wide as before.
  firstMatch() {
    const found = this.matchAfter(-1);
    if (found < 0) return;
    const [begin, end] = this.window, at = this.run.begin[found];
    if (at < begin || at >= end) this.look(at - (end - begin) / 10, at + ((end - begin) * 9) / 10);
    this.pick(found);
  }

  nextMatch() {
    this.go(this.matchAfter(this.selected >= 0 ? this.run.begin[this.selected] : -1));
  }

  // The earliest that was found on the lines shown, and begins after a moment; -1: none.
  matchAfter(now) {
    let found = -1;
    for (const [place, spans] of this.matches ?? []) {
      if (this.lineOfLane.get(place) === undefined) continue;
      const next = spans.find((span) => this.run.begin[span] > now);
      if (next !== undefined && (found < 0 || this.run.begin[next] < this.run.begin[found])) found = next;
    }
    return found;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      ArrowUp: () => this.step(-1), ArrowDown: () => this.step(1), Enter: () => this.atCursor(), " ": () => this.atCursor(),
      n: () => this.beside(1), p: () => this.beside(-1), c: () => this.alongPath(), s: () => this.sum(...this.window), 0: () => this.look(0, this.run.length), Home: () => this.look(0, this.run.length), Escape: () => this.pick(-1),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  step(by) {
    this.cursor = Math.max(0, Math.min(this.lines.length - 1, this.cursor + by));
    this.atCursor();
  }

  // Choose the operation of the cursor's line that is in the middle of the view, or at the time of the one chosen.
  atCursor() {
    const lane = this.lines[this.cursor]?.parts.at(-1), { begin, end } = this.run;
    if (!lane) return;
    const moment = this.selected >= 0 ? (begin[this.selected] + end[this.selected]) / 2 : (this.window[0] + this.window[1]) / 2;
    this.pick(Math.min(this.run.after(lane, moment), lane.last - 1));
  }

  resize() {
    if (this.chart.getWidth() === this.box.clientWidth) return;
    this.chart.resize();
    if (this.lines) this.tickOverview();
  }

  paint() {
    const card = colour("card");
    this.full = CATEGORIES.map(([name]) => inkOf(colour(name)));
    this.texts = CATEGORIES.map(([name]) => textOn(colour(name)));
    this.pale = CATEGORIES.map(([name]) => inkOf(colour(name), card, 0.25));
    this.rule = inkOf(colour("line"));
    this.found = inkOf(colour("match"));
    this.pathInk = inkOf(colour("path"));
    this.inks = this.matches ? this.pale : this.full;
    if (this.lines) this.setOption();
  }
}
