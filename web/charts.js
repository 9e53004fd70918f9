// Sparklines: the last minute of one or two series on a small canvas, always drawn from zero.
// Never smooths: what is shown is what came, and a break in the feed is a break in the line.
// A rare spike is cut off at the scale, which then says how high it went.

import { colours, fit } from "./paint.js";

const WINDOW_S = 60;
const BREAK_S = 1.5; // frames come ten a second; a longer silence is a gap
const USUAL = 0.95; // the share of points that the scale always holds
const SPIKE = 2; // what is this many times higher than those is a spike
const LABEL_ROOM = 16; // CSS pixels above the plot, for the scale

export class Sparkline {
  #canvas;
  #context;
  #size = { width: 0, height: 0 };
  #points = []; // [t, value, value…]
  #series;
  #text;
  #what;
  #hover = null; // share of the width

  /** `series` names the colours of the lines, lowest first; `text` formats a value with its unit. */
  constructor(canvas, { what, series, text }) {
    this.#canvas = canvas;
    this.#what = what;
    this.#series = series;
    this.#text = text;
    const fitted = fit(canvas, () => this.draw());
    this.#context = fitted.context;
    this.#size = fitted.size;
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX / Math.max(1, this.#size.width)));
    canvas.addEventListener("pointerleave", () => this.#point(null));
  }

  push(t, values) {
    this.#points.push([t, ...values]);
    const stale = this.#points.findIndex((point) => point[0] >= t - WINDOW_S - BREAK_S);
    if (stale > 0) this.#points.splice(0, stale);
  }

  clear() {
    this.#points = [];
  }

  draw() {
    const context = this.#context;
    if (!context || this.#size.width < 8) return;
    const { width, height } = this.#size;
    context.clearRect(0, 0, width, height);
    const last = this.#points.at(-1);
    const { peak, held } = this.#extent();
    const top = ceiling(held);
    const plot = {
      toX: (t) => (last ? (1 - (last[0] - t) / WINDOW_S) * (width - 4) : 0),
      toY: (value) => height - 1.5 - (Math.min(value, top) / top) * (height - LABEL_ROOM - 3),
      foot: height - 1.5,
    };
    const scale = this.#text(top).replace(/\.0+(?!\d)/, "");
    const label = peak > top ? `${scale}, peak ${this.#text(peak)}` : scale;
    this.#drawFrame(plot, peak === null ? "" : label);
    if (!last || peak === null) return;
    this.#series.forEach((colour, index) => this.#drawSeries(plot, index + 1, colours[colour]));
    if (this.#hover !== null) this.#drawReadout(plot, last[0]);
  }

  /** For a screen reader: what the picture shows, in one sentence. */
  describe() {
    const values = this.#points.map((point) => point[1]).filter(known);
    if (!values.length) return;
    const [low, high] = [Math.min(...values), Math.max(...values)].map(this.#text);
    const sentence = `${this.#what}, last 60 seconds: between ${low} and ${high}, now ${this.#text(values.at(-1))}`;
    this.#canvas.setAttribute("aria-label", sentence);
  }

  #point(share) {
    this.#hover = share;
    this.draw();
  }

  /** The highest value, and the one that the scale must hold: one spike, as at the start, is not to flatten a minute. */
  #extent() {
    const highest = this.#points.map((point) => Math.max(...point.slice(1).filter(known))).filter(known);
    highest.sort((a, b) => a - b);
    const peak = highest.at(-1) ?? null;
    const usual = highest[Math.floor((highest.length - 1) * USUAL)];
    return { peak, held: usual > 0 && peak > SPIKE * usual ? usual : peak };
  }

  #drawFrame({ toY, foot }, scale) {
    const context = this.#context;
    const { width } = this.#size;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, Math.round(foot) + 0.5);
    context.lineTo(width, Math.round(foot) + 0.5);
    context.stroke();
    if (!scale) return;
    context.setLineDash([2, 4]);
    context.beginPath();
    context.moveTo(0, LABEL_ROOM + 0.5);
    context.lineTo(width, LABEL_ROOM + 0.5);
    context.stroke();
    context.setLineDash([]);
    if (this.#hover !== null) return; // the readout takes this line
    this.#write(scale, width, "right");
    const span = `last ${WINDOW_S} s`;
    if (context.measureText(`${span}  ${scale}`).width < width) this.#write(span, 0, "left");
  }

  #drawSeries({ toX, toY, foot }, index, colour) {
    const context = this.#context;
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineJoin = "round";
    for (const run of runs(this.#points, index)) {
      context.beginPath();
      run.forEach(([t, value], i) => context[i ? "lineTo" : "moveTo"](toX(t), toY(value)));
      context.lineWidth = 1.5;
      context.stroke();
      context.lineTo(toX(run.at(-1)[0]), foot);
      context.lineTo(toX(run[0][0]), foot);
      context.globalAlpha = 0.12;
      context.fill();
      context.globalAlpha = 1;
    }
    const last = this.#points.at(-1);
    if (!known(last[index])) return;
    context.beginPath();
    context.arc(toX(last[0]), toY(last[index]), 2.5, 0, 2 * Math.PI);
    context.fill();
  }

  #drawReadout({ toX, toY, foot }, latest) {
    const wanted = latest - (1 - this.#hover) * WINDOW_S;
    const near = this.#points.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a));
    const context = this.#context;
    context.strokeStyle = colours.quiet;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(toX(near[0]), LABEL_ROOM);
    context.lineTo(toX(near[0]), foot);
    context.stroke();
    this.#series.forEach((colour, i) => {
      if (!known(near[i + 1])) return;
      context.fillStyle = colours[colour];
      context.beginPath();
      context.arc(toX(near[0]), toY(near[i + 1]), 3, 0, 2 * Math.PI);
      context.fill();
    });
    const values = near.slice(1).filter(known).map(this.#text).join(" · ");
    this.#write(`${Math.round(latest - near[0])} s ago: ${values}`, this.#size.width, "right");
  }

  #write(text, x, align) {
    const context = this.#context;
    context.font = `11px ${colours.font}`;
    context.textAlign = align;
    context.textBaseline = "alphabetic";
    context.fillStyle = colours.quiet;
    context.fillText(text, x, LABEL_ROOM - 5);
  }
}

/** The stretches of one series without a gap in time or a missing value. */
function runs(points, index) {
  const found = [];
  let run = null;
  let before = -Infinity;
  for (const point of points) {
    if (!known(point[index])) {
      run = null;
      continue;
    }
    if (!run || point[0] - before > BREAK_S) found.push((run = []));
    run.push([point[0], point[index]]);
    before = point[0];
  }
  return found;
}

/** The next 1, 1.5, 2, 3, 5 or 7.5 times a power of ten: a scale that holds still while values wander. */
function ceiling(peak) {
  if (!(peak > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(peak));
  return [1, 1.5, 2, 3, 5, 7.5, 10].find((step) => step * power >= peak) * power;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
