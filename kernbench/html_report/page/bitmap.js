"use strict";
// A bitmap of boxes: rectangles of one colour each, written as pixels, which takes as long as they are large.

// A colour of the style sheet, #rrggbb, as a pixel; mixed with another one.
function inkOf(text, under = text, share = 1) {
  const part = (place) => Math.round(share * parseInt(text.slice(place, place + 2), 16) + (1 - share) * parseInt(under.slice(place, place + 2), 16));
  return (255 << 24) | (part(5) << 16) | (part(3) << 8) | part(1);
}

class Bitmap {
  begin(x, y, width, height) {
    this.ratio = window.devicePixelRatio || 1;
    const wide = Math.max(Math.round(width * this.ratio), 1), high = Math.max(Math.round(height * this.ratio), 1);
    Object.assign(this, { x, y, wide, high });
    if (this.canvas?.width !== wide || this.canvas?.height !== high) {
      this.canvas = Object.assign(document.createElement("canvas"), { width: wide, height: high });
      this.context = this.canvas.getContext("2d");
      this.image = this.context.createImageData(wide, high);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
  }

  // A box of the chart's own pixels; what it has of it is at least one pixel.
  box(x, y, width, height, ink) {
    const { ratio, wide, pixels } = this;
    const left = Math.max(Math.round((x - this.x) * ratio), 0), right = Math.min(Math.max(Math.round((x - this.x + width) * ratio), left + 1), wide);
    const top = Math.max(Math.round((y - this.y) * ratio), 0), bottom = Math.min(Math.max(Math.round((y - this.y + height) * ratio), top + 1), this.high);
    if (right - left < 4) {
      for (let row = top * wide; row < bottom * wide; row += wide) for (let at = left; at < right; at++) pixels[row + at] = ink;
    } else {
      for (let row = top * wide; row < bottom * wide; row += wide) pixels.fill(ink, row + left, row + right);
    }
  }

  // The picture, with words on it: x, y, width, text, colour.
  end(labels) {
    const { context, ratio } = this;
    context.putImageData(this.image, 0, 0);
    context.font = `${10.5 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (const [x, y, width, text, colour] of labels) {
      context.fillStyle = colour;
      const most = Math.floor(width / 5.7), shown = text.length > most ? `${text.slice(0, most - 1)}..` : text;
      context.fillText(shown, (x - this.x) * ratio, (y - this.y) * ratio, (width + 3) * ratio);
    }
    return this.canvas;
  }
}
