// Where everybody is, between frames: positions move evenly from one frame to the next.
// Never draws, and never invents a position beyond the last one the server sent.

const MIN_STEP_MS = 40;
const MAX_STEP_MS = 250;

export class Scene {
  bounds = null;
  cell = 1;
  radius = 0;
  near = null; // where details end; null in a world with one level
  viewer = null; // {id, level, cells, x, y} as the server last told it
  #avatars = new Map(); // true positions
  #received = new Map(); // positions as the viewer received them
  #arrived = 0;
  #step = 100; // smoothed time between frames

  configure(hello) {
    const { min, max } = hello.bounds ?? { min: [0, 0], max: [1, 1] };
    this.bounds = { x0: min[0], y0: min[1], x1: max[0], y1: max[1] };
    this.cell = hello.cell > 0 ? hello.cell : 1;
    this.radius = hello.radius ?? 0;
    this.near = hello.near ?? null;
  }

  apply(frame, now) {
    const share = this.progress(now);
    const gap = now - this.#arrived;
    if (this.#arrived && gap < 1000) {
      this.#step = clamp(this.#step * 0.8 + gap * 0.2, MIN_STEP_MS, MAX_STEP_MS);
    }
    this.#arrived = now;
    const leap = Math.max(this.radius, this.cell) * 2; // further than this in one frame is a jump, not a walk
    this.#avatars = retarget(this.#avatars, frame.avatars ?? [], share, leap);
    const sameViewer = frame.viewer?.id === this.viewer?.id;
    const received = (frame.viewer?.received ?? []).filter(([id]) => id !== frame.viewer.id);
    this.#received = retarget(sameViewer ? this.#received : new Map(), received, share, leap);
    this.viewer = frame.viewer ?? null;
  }

  /** Width over height of the world. */
  get aspect() {
    const { x0, y0, x1, y1 } = this.bounds;
    return x1 > x0 && y1 > y0 ? (x1 - x0) / (y1 - y0) : 1;
  }

  /** 0 when a frame has just come, 1 when its positions are reached. */
  progress(now) {
    return clamp((now - this.#arrived) / this.#step, 0, 1);
  }

  get avatarCount() {
    return this.#avatars.size;
  }

  get receivedCount() {
    return this.#received.size;
  }

  has(id) {
    return this.#avatars.has(id);
  }

  ids() {
    return [...this.#avatars.keys()].sort((a, b) => a - b);
  }

  /** "detailed" or "coarse" as the viewer receives an avatar; null if it does not. */
  heardHow(id) {
    const p = this.#received.get(id);
    return p ? this.#how(p.level) : null;
  }

  /** The cells that the viewer has that way: [column, row, level]. */
  cellsHeld(how) {
    return (this.viewer?.cells ?? []).filter(([, , level]) => this.#how(level) === how);
  }

  get detailedCount() {
    let count = 0;
    for (const p of this.#received.values()) if (this.#how(p.level) === "detailed") count += 1;
    return count;
  }

  #how(level) {
    return this.near !== null && level === 0 ? "coarse" : "detailed";
  }

  /** Calls visit(id, x, y) for every avatar at its true position. */
  eachAvatar(share, visit) {
    for (const [id, p] of this.#avatars) visit(id, mix(p.fromX, p.x, share), mix(p.fromY, p.y, share));
  }

  /** How many updates a second the viewer receives, of all together. */
  get receivedRate() {
    let sum = 0;
    for (const p of this.#received.values()) sum += p.rate;
    return sum;
  }

  /**
   * How many updates a second the viewer receives of each avatar, on average, in so many bands of distance up to the
   * interest radius; null where it receives none.
   */
  ratesByDistance(bands) {
    const sums = Array.from({ length: bands }, () => [0, 0]);
    const centre = this.viewer && this.position(this.viewer.id, 1);
    for (const [id, p] of centre ? this.#received : []) {
      const at = this.position(id, 1) ?? [p.x, p.y];
      const band = Math.floor((bands * Math.hypot(at[0] - centre[0], at[1] - centre[1])) / this.radius);
      if (p.rate === 0 || !sums[band]) continue; // heard once, or just out of reach
      sums[band][0] += p.rate;
      sums[band][1] += 1;
    }
    return sums.map(([sum, count]) => (count ? sum / count : null));
  }

  /** Whether the viewer has a budget, so that its relay leaves updates out. */
  get isLimited() {
    return (this.viewer?.limit_bits ?? null) !== null;
  }

  /** Calls visit(id, x, y, staleMs, how, rate) for every avatar the viewer receives, where it was received. */
  eachReceived(share, visit) {
    for (const [id, p] of this.#received) {
      // Without a budget, what counts is how old updates were when they came; with one, how long none has come.
      const stale = p.age + (this.isLimited ? p.silent : 0);
      visit(id, mix(p.fromX, p.x, share), mix(p.fromY, p.y, share), stale, this.#how(p.level), p.rate);
    }
  }

  position(id, share) {
    const p = this.#avatars.get(id);
    if (p) return [mix(p.fromX, p.x, share), mix(p.fromY, p.y, share)];
    return this.viewer?.id === id ? [this.viewer.x, this.viewer.y] : null;
  }

  /** How many others stand within the interest radius of `id`. */
  countWithin(id) {
    const centre = this.position(id, 1);
    if (!centre) return 0;
    let count = 0;
    for (const [other, p] of this.#avatars) {
      if (other !== id && Math.hypot(p.x - centre[0], p.y - centre[1]) <= this.radius) count += 1;
    }
    return count;
  }

  nearest(x, y) {
    return this.#least((p) => Math.hypot(p.x - x, p.y - y));
  }

  nearestToMiddle() {
    const { x0, y0, x1, y1 } = this.bounds ?? { x0: 0, y0: 0, x1: 0, y1: 0 };
    return this.nearest((x0 + x1) / 2, (y0 + y1) / 2);
  }

  /** The next avatar from `id` in direction (dx, dy), preferring what lies straight ahead. */
  neighbour(id, dx, dy) {
    const from = this.#avatars.get(id);
    if (!from) return this.nearestToMiddle();
    return this.#least((p, other) => {
      const ahead = (p.x - from.x) * dx + (p.y - from.y) * dy;
      const aside = Math.abs((p.x - from.x) * dy) + Math.abs((p.y - from.y) * dx);
      return other === id || ahead <= 0 || aside > 2 * ahead ? Infinity : ahead + 2 * aside;
    });
  }

  #least(cost) {
    let best = null;
    let least = Infinity;
    for (const [id, p] of this.#avatars) {
      const c = cost(p, id);
      if (c < least) [best, least] = [id, c];
    }
    return best;
  }
}

function retarget(old, rows, share, leap) {
  const fresh = new Map();
  for (const [id, x, y, age, level, silent = 0, rate = 0] of rows) {
    const before = old.get(id);
    let fromX = x;
    let fromY = y;
    if (before) {
      const shownX = mix(before.fromX, before.x, share);
      const shownY = mix(before.fromY, before.y, share);
      if (Math.hypot(x - shownX, y - shownY) <= leap) [fromX, fromY] = [shownX, shownY];
    }
    fresh.set(id, { x, y, fromX, fromY, age, level, silent, rate });
  }
  return fresh;
}

const mix = (a, b, share) => a + (b - a) * share;

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
