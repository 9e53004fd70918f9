// The numbers: tiles, verdict and facts, written a few times a second so that they can be read.
// Never computes what the server should have counted; text from the server goes in as text, never as markup.

import { Sparkline } from "./charts.js";
import { bytes, exact, percent, plural, ratio, short, significant } from "./format.js";

const REFRESH_MS = 250;
const DESCRIBE_EVERY = 8; // refreshes between rewrites of what a screen reader hears of the charts
const MAX_REASONS = 5;
const withBytes = (n) => `${bytes(n).join(" ")}/s`;

const at = (id) => document.getElementById(id);

export class Panel {
  #scene;
  #frame = null;
  #state = "connecting";
  #lastT = 0;
  #refreshes = 0;
  #charts = {
    deliveries: new Sparkline(at("chart-deliveries"), { what: "Deliveries per second", series: ["accent"], text: short }),
    age: new Sparkline(at("chart-age"), { what: "Median age on arrival", series: ["accent", "second"], text: (n) => `${significant(n)} ms` }),
    cpu: new Sparkline(at("chart-cpu"), { what: "Relay CPU per delivery", series: ["accent"], text: (n) => `${significant(n)} µs` }),
    out: new Sparkline(at("chart-out"), { what: "Bytes sent per second", series: ["accent"], text: withBytes }),
  };

  constructor(scene) {
    this.#scene = scene;
    setInterval(() => this.#refresh(), REFRESH_MS);
  }

  greet(hello) {
    document.body.dataset.map = hello.has_map ? "yes" : "no";
    at("no-map").hidden = Boolean(hello.has_map);
    document.title = hello.title ? `${hello.title} · Canopy` : "Canopy";
    write("title", hello.title ?? "");
    chip("relay", hello.relay);
    chip("mode", hello.mode && (hello.tick_ms ? `${hello.mode}, ${hello.tick_ms} ms tick` : hello.mode));
    chip("source", hello.source);
    if (!hello.has_map || !hello.bounds) return;
    const [wide, high] = [0, 1].map((axis) => significant(hello.bounds.max[axis] - hello.bounds.min[axis]).replace(/\.0+$/, ""));
    write("extent", ` on ${wide} × ${high} m`);
    const near = hello.near ?? null;
    document.body.dataset.levels = near === null ? "one" : "two";
    write("near-key", near === null ? "interest radius" : "near");
    write("cell-key", near === null ? "subscribed cell" : "cell at level 1: every update");
    write("far-cell-key", `cell at level 0: one update in ${hello.coarse_every}`);
    write("within-label", `Within ${significant(hello.radius).replace(/\.0+$/, "")} m`);
  }

  take(frame) {
    if (frame.t < this.#lastT) for (const chart of Object.values(this.#charts)) chart.clear(); // the server restarted
    this.#lastT = frame.t;
    const { relay, crowd } = frame;
    this.#charts.deliveries.push(frame.t, [relay?.deliveries_per_s]);
    this.#charts.age.push(frame.t, [crowd?.age_ms?.p50, crowd?.age_ms?.p99]);
    this.#charts.cpu.push(frame.t, [relay?.cpu_us_per_delivery]);
    this.#charts.out.push(frame.t, [relay?.bytes_out_per_s]);
    const first = !this.#frame;
    this.#frame = frame;
    if (first) this.#refresh();
  }

  setState(state) {
    this.#state = state;
    const words = { connecting: "Connecting", live: "Live", lost: "Lost, reconnecting" };
    const place = document.querySelector("#connection span");
    if (place.textContent !== words[state]) place.textContent = words[state];
    this.#refresh();
  }

  #refresh() {
    if (!this.#frame) return;
    const { relay, crowd } = this.#frame;
    this.#showRelay(relay ?? {});
    this.#showDrops(relay);
    number("age-p50", crowd?.age_ms?.p50, significant);
    number("age-p99", crowd?.age_ms?.p99, significant);
    this.#showVerdict(crowd);
    this.#showViewer();
    for (const chart of Object.values(this.#charts)) {
      chart.draw();
      if (this.#refreshes % DESCRIBE_EVERY === 0) chart.describe();
    }
    this.#refreshes += 1;
  }

  #showRelay(relay) {
    number("deliveries", relay.deliveries_per_s, short);
    write("deliveries-note", `of ${short(relay.updates_per_s)} updates/s`);
    number("cpu", relay.cpu_us_per_delivery, significant);
    write("cpu-note", `relay uses ${significant(relay.cpu_share)} cores`);
    const [sent, unit] = bytes(relay.bytes_out_per_s);
    write("bytes-out", sent);
    write("bytes-out-unit", `${unit}/s`);
    write("bytes-out-note", `in ${short(relay.datagrams_out_per_s)} datagrams/s`);
    number("clients", relay.clients, exact);
    number("subscriptions", relay.subscriptions, exact);
    number("groups", relay.groups, exact);
    write("updates", `${short(relay.updates_per_s)}/s`);
    write("datagrams", `${short(relay.datagrams_out_per_s)}/s`);
    write("bytes", withBytes(relay.bytes_out_per_s));
    write("fanout", ratio(relay.deliveries_per_s, relay.updates_per_s));
    write("bundling", ratio(relay.deliveries_per_s, relay.datagrams_out_per_s));
    write("padding", percent(relay.padding_share));
  }

  #showDrops(relay) {
    const reasons = Object.entries(relay?.drops ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
    const total = relay ? reasons.reduce((sum, [, n]) => sum + n, 0) : undefined;
    number("drops", total, short);
    at("drops").classList.toggle("some", total > 0);
    write("drops-note", !relay ? "–" : total ? `${significant(relay.drops_per_s)} per second now` : "no drops");
    const rest = reasons.slice(MAX_REASONS);
    const rows = reasons.slice(0, MAX_REASONS);
    if (rest.length) rows.push([`${rest.length} more`, rest.reduce((sum, [, n]) => sum + n, 0)]);
    showReasons(rows, reasons[0]?.[1] ?? 1);
  }

  #showVerdict(crowd) {
    const box = at("verdict");
    box.hidden = !crowd && document.body.dataset.map === "no";
    const faults = crowd ? crowd.missing + crowd.duplicates + crowd.unexpected + crowd.out_of_order : 0;
    const begun = crowd?.deliveries_expected > 0 || faults > 0;
    box.dataset.verdict = !begun ? "none" : faults > 0 ? "bad" : "good";
    box.dataset.pace = crowd?.pace ?? "on_time";
    const late = this.#state === "lost";
    if (!crowd) {
      write("verdict-head", "No oracle here");
      write("verdict-detail", "nothing on this console knows what should arrive");
    } else {
      write("verdict-head", !begun ? "Waiting for the first delivery" : faults > 0 ? faultSentence(crowd) : PACES[crowd.pace]);
      write("verdict-detail", `${exact(crowd.deliveries)} of ${exact(crowd.deliveries_expected)} expected${late ? " · last known" : ""}`);
    }
    write("verdict-updates", !crowd || late ? "" : ` · ${short(crowd.updates_published)} updates`);
  }

  #showViewer() {
    const scene = this.#scene;
    number("avatars", scene.avatarCount, exact);
    const { viewer } = scene;
    number("viewer-id", viewer?.id, String);
    number("received-count", viewer ? scene.receivedCount : undefined, exact);
    number("within", viewer ? scene.countWithin(viewer.id) : undefined, exact);
    number("viewer-rate", viewer ? Math.round(scene.receivedRate) : undefined, exact);
    number("cells", viewer?.cells?.length, exact);
    number("detailed", viewer ? scene.detailedCount : undefined, exact);
    number("level", viewer?.level, scene.near === null ? exact : (level) => (level > 0 ? `${level} near, 0 far` : "0"));
  }
}

function faultSentence({ missing, duplicates, unexpected, out_of_order: disordered }) {
  const parts = [];
  if (missing) parts.push(`${plural(missing, "delivery", "deliveries")} missing`);
  if (duplicates) parts.push(plural(duplicates, "duplicate", "duplicates"));
  if (unexpected) parts.push(`${exact(unexpected)} unexpected`);
  if (disordered) parts.push(`${exact(disordered)} out of order`);
  return parts.join(", ");
}

// Without numbers: a screen reader reads the sentence out whenever it changes.
const PACES = {
  on_time: "Every delivery accounted for",
  late: "Nearly overloaded: some updates come late",
  overloaded: "Overloaded: updates come too late",
  thinned: "Budgets for everyone: what is far comes late",
};

function showReasons(rows, most) {
  const list = at("reasons");
  while (list.children.length > rows.length) list.lastElementChild.remove();
  while (list.children.length < rows.length) {
    const row = document.createElement("li");
    row.append(document.createElement("span"), document.createElement("b"));
    list.append(row);
  }
  rows.forEach(([reason, n], i) => {
    const row = list.children[i];
    setText(row.firstElementChild, reason.replaceAll("_", " "));
    setText(row.lastElementChild, short(n));
    row.style.setProperty("--share", Math.min(1, n / most).toFixed(3));
  });
}

function chip(id, text) {
  write(id, text || "");
  at(id).closest("li").hidden = !text;
}

/** A key number: text for people, the raw value in data-value for tests and scripts. */
function number(id, value, text) {
  write(id, value === undefined || value === null ? "–" : text(value));
  at(id).dataset.value = value ?? "";
}

function write(id, text) {
  setText(at(id), text);
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
