// Which avatar the console looks through: a person's choice while that avatar is there, else one near the middle.
// Never opens a connection and never draws.

const GRACE_MS = 1000; // an avatar may miss a frame or two without losing the viewer

export class ViewerChoice {
  #scene;
  #chosen = null; // by a person; kept while it is away, so that it takes over again when it returns
  #automatic = null;
  #current = null;
  #lastSeen = 0;

  constructor(scene) {
    this.#scene = scene;
  }

  get current() {
    return this.#current;
  }

  choose(id) {
    if (id === null || !this.#scene.has(id)) return;
    this.#chosen = id;
    this.#current = id;
  }

  chooseNext() {
    const ids = this.#scene.ids();
    this.choose(ids.find((id) => id > (this.#current ?? -Infinity)) ?? ids[0] ?? null);
  }

  chooseAutomatically() {
    this.#chosen = null;
    this.#automatic = this.#scene.nearestToMiddle();
    this.#current = this.#automatic;
  }

  /** To be called on every frame; returns the avatar to look through, or null in an empty world. */
  update(now) {
    if (this.#chosen !== null && this.#scene.has(this.#chosen)) this.#current = this.#chosen;
    if (this.#current !== null && this.#scene.has(this.#current)) {
      this.#lastSeen = now;
    } else if (this.#current === null || now - this.#lastSeen > GRACE_MS) {
      if (!this.#scene.has(this.#automatic)) this.#automatic = this.#scene.nearestToMiddle();
      this.#current = this.#automatic;
    }
    return this.#current;
  }
}
