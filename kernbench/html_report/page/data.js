"use strict";
// What the run consists of: inflated, and put together from planes of bytes (kernbench/html_report/columns.py).

async function inflated(text) {
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The text of an element, which does not keep it.
function taken(id) {
  const element = document.getElementById(id), text = element.textContent;
  element.textContent = "";
  return text;
}

async function openLibrary() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflated(taken("kernbench-library")));
  document.head.append(script);
}

class Run {
  // That of another report's file.
  static async ofPage(page) {
    const [, rest] = page.split('<script id="kernbench-data" type="text/plain">', 2);
    if (!rest) throw new Error("this is no report of kernbench run --report");
    return Run.open(rest.slice(0, rest.indexOf("</" + "script>")));
  }

  static async open(text) {
    const bytes = await inflated(text);
    const end = 4 + new DataView(bytes.buffer).getUint32(0, true);
    return new Run(JSON.parse(new TextDecoder().decode(bytes.subarray(4, end))), bytes.subarray(end));
  }

  constructor(header, bytes) {
    Object.assign(this, header);
    this.bytes = bytes;
    this.type = this.column("type", Uint32Array);
    this.call = this.unfolded("call", Uint32Array);
    this.below = this.column("below", Uint16Array);
    this.above = this.column("above", Uint16Array);
    this.path = {
      row: this.column("path_row", Uint32Array), begin: this.unfolded("path_begin", Float64Array),
      length: this.column("path_length", Float64Array),
    };
    this.linkBytes = this.columns.link_bytes ? this.column("link_bytes", Float64Array) : new Float64Array(0);
    this.lanes = [];
    let first = 0;
    for (const [rank, name, count] of header.rows) {
      this.lanes.push({ place: this.lanes.length, rank, name, first, last: first + count });
      first += count;
    }
    this.times(this.column("gap", Float64Array), this.column("length", Float64Array));
    this.length = Math.max(Math.round(this.seconds * 1e9), 1);
    this.kindOf = Uint8Array.from(this.types, ([, kind, , detail]) => categoryOf(kind, this.details[detail]));
    this.bytes = null;
  }

  column(name, Kind) {
    const [offset, width, count] = this.columns[name], values = new Kind(count);
    for (let place = 0, scale = 1; place < width; place++, scale *= 256) {
      const plane = this.bytes.subarray(offset + place * count, offset + (place + 1) * count);
      for (let i = 0; i < count; i++) values[i] += plane[i] * scale;
    }
    return values;
  }

  unfolded(name, Kind) {
    const steps = this.column(name, Float64Array), values = new Kind(steps.length);
    for (let i = 0, now = 0; i < steps.length; i++) {
      now += steps[i] % 2 ? -(steps[i] + 1) / 2 : steps[i] / 2;
      values[i] = now;
    }
    return values;
  }

  times(gap, length) {
    this.begin = gap;
    this.end = length;
    for (const lane of this.lanes) {
      for (let i = lane.first, now = 0; i < lane.last; i++) {
        gap[i] += now;
        now = length[i] += gap[i];
      }
    }
  }

  // Whose a lane is, in words: a rank's, the serving engine's, or main's.
  ownerOf(lane) {
    return lane.rank !== null ? `rank ${lane.rank}` : lane.name.startsWith("requests") ? "engine" : "main";
  }

  laneOf(span) {
    let low = 0, high = this.lanes.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.lanes[middle].last <= span) low = middle + 1; else high = middle;
    }
    return this.lanes[low];
  }

  // The first span of a lane that ends after a moment.
  after(lane, moment) {
    let low = lane.first, high = lane.last;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  // The first span of a lane that begins at a moment or later.
  from(lane, moment) {
    let low = lane.first, high = lane.last;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.begin[middle] < moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  // Of each collective, its members' spans, made when they are first asked for.
  members(call) {
    if (!this.byCall) {
      this.byCall = Array.from({ length: this.calls.length + 1 }, () => []);
      for (let i = 0; i < this.call.length; i++) if (this.call[i]) this.byCall[this.call[i]].push(i);
    }
    return this.byCall[call];
  }

  // Shares of time that a lane is busy with each category, in bins: the first level has the narrowest ones, each further
  // level bins of twice the width. Made when the lane is first seen from afar.
  levels(lane) {
    if (lane.levels) return lane.levels;
    const bins = 1 << Math.max(6, Math.ceil(Math.log2((lane.last - lane.first) / 4))), width = this.length / bins;
    const base = CATEGORIES.map(() => null);
    for (let i = lane.first; i < lane.last; i++) {
      const shares = (base[this.kindOf[this.type[i]]] ??= new Float32Array(bins));
      const begin = this.begin[i] / width, end = Math.min(this.end[i] / width, bins);
      let bin = Math.floor(begin);
      for (let at = begin; at < end; at = ++bin) shares[bin] += Math.min(bin + 1, end) - at;
    }
    lane.levels = [base];
    for (let count = bins >> 1; count >= 32; count >>= 1) {
      const finer = lane.levels.at(-1);
      lane.levels.push(finer.map((shares) => shares && Float32Array.from({ length: count }, (_, bin) => (shares[2 * bin] + shares[2 * bin + 1]) / 2)));
    }
    return lane.levels;
  }
}
