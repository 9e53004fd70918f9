// The live feed: one Server-Sent Events stream, kept open whatever happens.
// Never interprets a frame and never touches the document; it only hands on `hello`, `frame` and `state`.

const SWITCH_DELAY_MS = 120; // holding an arrow key must not open a stream per repeat
const SILENCE_MS = 3000; // frames come ten a second; this long without one is a dead connection
const BACKOFF_MS = [250, 500, 1000, 2000, 4000];

export class Feed {
  #url;
  #on;
  #viewer = null;
  #current = null; // the stream whose frames are shown
  #pending = null; // the stream being opened; takes over with its first frame
  #failures = 0;
  #timer = 0;
  #heard = 0;
  #state = "";

  /** `on` is {hello(message), frame(message), state("connecting" | "live" | "lost")}. */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
  }

  start() {
    this.#enter("connecting");
    this.#open();
    setInterval(() => this.#checkSilence(), 1000);
    // A laptop waking up should not sit out the back-off.
    addEventListener("online", () => this.#state === "lost" && this.#schedule(0));
  }

  /** Asks for the feed as avatar `id` sees it. The old stream stays until the new one has a frame to show. */
  watch(id) {
    if (id === this.#viewer) return;
    this.#viewer = id;
    this.#failures = 0;
    this.#schedule(SWITCH_DELAY_MS);
  }

  #schedule(delay) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), delay);
  }

  #open() {
    clearTimeout(this.#timer);
    this.#pending?.source.close();
    // A server that refuses an unknown viewer would refuse it for ever, so every second try asks for none.
    const viewer = this.#failures % 2 === 0 ? this.#viewer : null;
    const query = viewer === null ? "" : `?viewer=${encodeURIComponent(viewer)}`;
    const stream = { source: new EventSource(this.#url + query), viewer, hello: null, opened: performance.now() };
    this.#pending = stream;
    stream.source.addEventListener("hello", (event) => this.#onHello(stream, event));
    stream.source.addEventListener("frame", (event) => this.#onFrame(stream, event));
    stream.source.addEventListener("error", () => this.#onError(stream));
  }

  #onHello(stream, event) {
    stream.hello = parse(event.data);
    if (stream === this.#current && stream.hello) this.#on.hello(stream.hello);
  }

  #onFrame(stream, event) {
    const frame = parse(event.data);
    if (!frame || (stream !== this.#current && stream !== this.#pending)) return;
    if (stream === this.#pending) this.#adopt(stream);
    this.#heard = performance.now();
    this.#on.frame(frame);
  }

  #adopt(stream) {
    this.#current?.source.close();
    this.#current = stream;
    this.#pending = null;
    this.#failures = 0;
    if (stream.hello) this.#on.hello(stream.hello);
    this.#enter("live");
    if (stream.viewer !== this.#viewer) this.#schedule(BACKOFF_MS[2]);
  }

  #onError(stream) {
    // The browser's own retry neither backs off nor survives an HTTP error, so every stream is used once.
    stream.source.close();
    if (stream === this.#current) {
      this.#current = null;
      this.#enter("lost");
      if (!this.#pending) this.#schedule(BACKOFF_MS[0]);
    } else if (stream === this.#pending) {
      this.#pending = null;
      if (!this.#current) this.#enter("lost");
      this.#schedule(BACKOFF_MS[Math.min(this.#failures++, BACKOFF_MS.length - 1)]);
    }
  }

  #checkSilence() {
    const now = performance.now();
    if (this.#current && now - this.#heard > SILENCE_MS) this.#onError(this.#current);
    if (this.#pending && now - this.#pending.opened > SILENCE_MS) this.#onError(this.#pending);
  }

  #enter(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#on.state(state);
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // one damaged event must not end the feed
  }
}
