// The map: draws the scene through the viewer's eyes, and turns clicks and keys into choices.
// Never changes the scene and never talks to the server.

import { clamp } from "./scene.js";
import { fit, prefersStillness } from "./paint.js";
import { drawAvatars, drawCells, drawGrid, drawGround, drawHover, drawRates, drawReach, drawReceived, drawScaleBar, drawViewer } from "./layers.js";

const MARGIN = 22; // CSS pixels kept free around the world, for the scale bar
const PICTURE_MS = 28; // thirty pictures a second are smooth at walking pace, and leave the CPU to the relay being watched
const CAMERA_MS = 110; // time constant of the camera's way to a new view
const FOLLOW_RADII = 2.6; // half the height of the follow view, in interest radii
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class WorldMap {
  #canvas;
  #scene;
  #context;
  #size = { width: 0, height: 0 };
  #camera = null; // {x, y, scale}: the world point in the middle, and CSS pixels per metre
  #scheduled = false;
  #drawn = 0;
  #hover = null; // CSS pixels
  #viewerId = null;
  follow = false;

  /** `on` is {pick(id), next(), automatic(), toggleFollow()}. */
  constructor(canvas, scene, on) {
    this.#canvas = canvas;
    this.#scene = scene;
    const fitted = fit(canvas, () => {
      this.#camera = null;
      this.refresh();
    });
    this.#context = fitted.context;
    this.#size = fitted.size;
    canvas.addEventListener("click", (event) => on.pick(this.#avatarAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointermove", (event) => {
      this.#hover = event.pointerType === "mouse" ? [event.offsetX, event.offsetY] : null;
    });
    canvas.addEventListener("pointerleave", () => (this.#hover = null));
    canvas.addEventListener("keydown", (event) => this.#onKey(event, on));
  }

  lookThrough(id) {
    this.#viewerId = id;
  }

  /** Draws now, and goes on until the positions of the last frame are reached. */
  refresh() {
    if (this.#scheduled || !this.#context) return;
    this.#scheduled = true;
    const step = (now) => {
      if (now - this.#drawn < PICTURE_MS) return requestAnimationFrame(step);
      this.#scheduled = false;
      const moving = this.#draw(now);
      this.#drawn = now;
      if (moving) this.refresh();
    };
    requestAnimationFrame(step);
  }

  #onKey(event, on) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    if (arrow) on.pick(this.#scene.neighbour(this.#viewerId, ...arrow));
    else if (event.key === "n" || event.key === "N") on.next();
    else if (event.key === "f" || event.key === "F") on.toggleFollow();
    else if (event.key === "Home") on.automatic();
    else return;
    event.preventDefault();
  }

  #avatarAt(px, py) {
    if (!this.#camera) return null;
    const { x, y, scale } = this.#camera;
    const { width, height } = this.#size;
    return this.#scene.nearest(x + (px - width / 2) / scale, y - (py - height / 2) / scale);
  }

  #draw(now) {
    const { width, height } = this.#size;
    if (!this.#scene.bounds || width < 2 || height < 2) return false;
    const share = prefersStillness() ? 1 : this.#scene.progress(now);
    const travelling = this.#moveCamera(share, now - this.#drawn);
    const { x, y, scale } = this.#camera;
    const view = {
      context: this.#context, width, height, scale, share,
      dot: clamp(scale * 0.17, 2, 4.5), // a person is about this wide, within what an eye can find
      toX: (wx) => width / 2 + (wx - x) * scale,
      toY: (wy) => height / 2 - (wy - y) * scale, // north is up
    };
    drawGround(view, this.#scene);
    drawCells(view, this.#scene);
    drawGrid(view, this.#scene);
    drawReach(view, this.#scene, this.#viewerId);
    drawAvatars(view, this.#scene, this.#viewerId);
    drawReceived(view, this.#scene);
    drawRates(view, this.#scene);
    drawViewer(view, this.#scene, this.#viewerId);
    if (this.#hover) drawHover(view, this.#scene, this.#avatarAt(...this.#hover), this.#viewerId);
    drawScaleBar(view);
    return share < 1 || travelling;
  }

  /** Eases the camera to where it should be; true while it is on its way. */
  #moveCamera(share, elapsed) {
    const goal = this.#goal(share);
    const from = this.#camera;
    if (!from || prefersStillness()) {
      this.#camera = goal;
      return false;
    }
    const ease = 1 - Math.exp(-elapsed / CAMERA_MS);
    this.#camera = {
      x: from.x + (goal.x - from.x) * ease,
      y: from.y + (goal.y - from.y) * ease,
      scale: from.scale * (goal.scale / from.scale) ** ease,
    };
    const away = Math.hypot(goal.x - this.#camera.x, goal.y - this.#camera.y) * goal.scale;
    return away > 0.3 || Math.abs(goal.scale / this.#camera.scale - 1) > 0.002;
  }

  #goal(share) {
    const { x0, y0, x1, y1 } = this.#scene.bounds;
    const { width, height } = this.#size;
    const whole = Math.min((width - 2 * MARGIN) / Math.max(x1 - x0, 1e-6), (height - 2 * MARGIN) / Math.max(y1 - y0, 1e-6));
    const centre = this.follow ? this.#scene.position(this.#viewerId, share) : null;
    if (!centre || !(this.#scene.radius > 0)) return { x: (x0 + x1) / 2, y: (y0 + y1) / 2, scale: whole };
    const close = Math.min(width, height) / (2 * FOLLOW_RADII * this.#scene.radius);
    return { x: centre[0], y: centre[1], scale: Math.max(close, whole) };
  }
}
