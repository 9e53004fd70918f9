// The layers of the map, each drawn by one function from a view and the scene.
// Never keeps state: what is not in its arguments or the theme does not reach the picture.

import { clamp } from "./scene.js";
import { colours } from "./paint.js";

const MIN_GRID_PX = 7; // a finer grid would be a grey wash
const MIN_RATE_SCALE = 14; // CSS pixels per metre below which numbers would cover each other
const CELL = { detailed: "cell", coarse: "far-cell" };
const HEARD = { detailed: "heard", coarse: "far" };

export function drawGround({ context, width, height, toX, toY }, { bounds }) {
  context.globalAlpha = 1;
  context.fillStyle = colours.outside;
  context.fillRect(0, 0, width, height);
  context.fillStyle = colours.ground;
  context.fillRect(toX(bounds.x0), toY(bounds.y1), toX(bounds.x1) - toX(bounds.x0), toY(bounds.y0) - toY(bounds.y1));
}

export function drawCells({ context, scale, toX, toY }, scene) {
  const { cell } = scene;
  for (const [how, colour] of Object.entries(CELL)) {
    context.fillStyle = colours[colour];
    context.beginPath();
    for (const [cx, cy] of scene.cellsHeld(how)) context.rect(toX(cx * cell), toY((cy + 1) * cell), cell * scale, cell * scale);
    context.fill();
  }
}

export function drawGrid({ context, scale, toX, toY }, { bounds, cell }) {
  const left = toX(bounds.x0), right = toX(bounds.x1), top = toY(bounds.y1), bottom = toY(bounds.y0);
  context.strokeStyle = colours.grid;
  context.lineWidth = 1;
  context.beginPath();
  if (cell * scale >= MIN_GRID_PX) {
    for (let i = Math.ceil(bounds.x0 / cell); i * cell <= bounds.x1; i += 1) line(context, crisp(toX(i * cell)), top, crisp(toX(i * cell)), bottom);
    for (let i = Math.ceil(bounds.y0 / cell); i * cell <= bounds.y1; i += 1) line(context, left, crisp(toY(i * cell)), right, crisp(toY(i * cell)));
  }
  context.stroke();
  context.strokeStyle = colours.line;
  context.strokeRect(crisp(left), crisp(top), Math.round(right - left), Math.round(bottom - top));
}

export function drawReach({ context, scale, share, toX, toY }, scene, id) {
  const centre = scene.position(id, share);
  if (!centre || !(scene.radius > 0)) return;
  context.lineWidth = 1.5;
  context.setLineDash([5, 5]);
  for (const [radius, colour] of [[scene.radius, scene.near === null ? "viewer" : "far"], [scene.near, "viewer"]]) {
    if (!(radius > 0)) continue;
    context.strokeStyle = colours[colour];
    context.beginPath();
    context.arc(toX(centre[0]), toY(centre[1]), radius * scale, 0, 2 * Math.PI);
    context.stroke();
  }
  context.setLineDash([]);
}

export function drawAvatars({ context, share, dot, toX, toY }, scene, viewerId) {
  // One path for each kind: a thousand fills would cost more than a thousand arcs.
  const paths = { unheard: new Path2D(), coarse: new Path2D(), detailed: new Path2D() };
  scene.eachAvatar(share, (id, x, y) => {
    if (id === viewerId) return;
    const how = scene.heardHow(id);
    const path = paths[how ?? "unheard"];
    const size = how ? dot : dot * 0.8;
    path.moveTo(toX(x) + size, toY(y));
    path.arc(toX(x), toY(y), size, 0, 2 * Math.PI);
  });
  for (const [how, path] of Object.entries(paths)) {
    context.fillStyle = colours[HEARD[how] ?? "unheard"];
    context.fill(path);
  }
}

/** A ring where each avatar was received, tied to where it really is; both fade with age. */
export function drawReceived({ context, share, dot, toX, toY }, scene) {
  const ring = dot + 3.5;
  const gone = scene.isLimited ? 2500 : 1000;
  scene.eachReceived(share, (id, x, y, age, how) => {
    context.strokeStyle = colours[HEARD[how]];
    context.globalAlpha = Math.max(0.15, 1 - 0.85 * Math.sqrt(clamp(age / gone, 0, 1)));
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(toX(x), toY(y), ring, 0, 2 * Math.PI);
    const truth = scene.position(id, share);
    if (truth) line(context, toX(x), toY(y), toX(truth[0]), toY(truth[1]));
    context.stroke();
  });
  context.globalAlpha = 1;
}

/** How many updates a second the viewer has of each avatar, where it has a budget and there is room to write. */
export function drawRates(view, scene) {
  const { scale, share, dot, toX, toY } = view;
  if (!scene.isLimited || scale < MIN_RATE_SCALE) return;
  scene.eachReceived(share, (id, x, y, age, how, rate) => {
    if (rate > 0) label(view, toX(x), toY(y) + dot + 15, rate < 9.5 ? rate.toFixed(1) : String(Math.round(rate)), colours[HEARD[how]]);
  });
}

export function drawViewer(view, scene, id) {
  const { context, share, dot, toX, toY } = view;
  const centre = scene.position(id, share);
  if (!centre) return;
  const px = toX(centre[0]), py = toY(centre[1]);
  context.fillStyle = colours.viewer;
  context.strokeStyle = colours.ground;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(px, py, dot + 2.5, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  label(view, px, py - dot - 9, String(id), colours.viewer);
}

export function drawHover(view, scene, id, viewerId) {
  const centre = id === null || id === viewerId ? null : scene.position(id, view.share);
  if (!centre) return;
  const { context, dot, toX, toY } = view;
  const px = toX(centre[0]), py = toY(centre[1]);
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(px, py, dot + 6, 0, 2 * Math.PI);
  context.stroke();
  label(view, px, py - dot - 11, String(id), colours.ink);
}

export function drawScaleBar(view) {
  const { context, width, height, scale } = view;
  const metres = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].findLast((m) => m * scale <= 110);
  if (!metres) return;
  const right = width - 14, bottom = height - 8, left = right - metres * scale;
  context.strokeStyle = colours.quiet;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(left, bottom - 5);
  context.lineTo(left, bottom);
  context.lineTo(right, bottom);
  context.lineTo(right, bottom - 5);
  context.stroke();
  label(view, left - 20, bottom, metres >= 1000 ? `${metres / 1000} km` : `${metres} m`, colours.quiet);
}

/** Text centred at px with its foot at py, haloed so that it reads on anything. */
function label({ context, width }, px, py, text, colour) {
  context.font = `600 11px ${colours.font}`;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colours.outside;
  const x = clamp(px, 14, width - 14);
  const y = Math.max(py, 12);
  context.strokeText(text, x, y);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

function line(context, x0, y0, x1, y1) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}

const crisp = (pixel) => Math.round(pixel) + 0.5;
