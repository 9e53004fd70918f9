// The map of the relays: who is joined with whom, what each carries, what is down; and the buttons that break it.
// Never guesses: what is up, cut or lost is what the server says of each relay and link.

import { exact, plural, short, significant } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const REFRESH_MS = 250;
const RADIUS = 15;
const [WIDTH, HEIGHT, EDGE] = [440, 150, 4];
const LABEL = 5; // from a circle to its labels
const RECENT_S = 10; // over which missing deliveries are counted

export class RelayMap {
  #section;
  #svg;
  #select;
  #button;
  #net = null;
  #drawn = ""; // what the elements were made for
  #relays = [];
  #links = [];
  #shownAt = 0;
  #missing = []; // [t, missing], oldest first
  #problem = "";

  constructor(section) {
    const at = (id) => section.querySelector(`#net-${id}`);
    this.#section = section;
    this.#svg = at("map");
    this.#select = { relays: at("relay"), links: at("link") };
    this.#button = { relays: at("kill"), links: at("cut") };
    this.#button.relays.addEventListener("click", () => this.#act("relays", (relay) => (relay.up ? "kill" : "revive")));
    this.#button.links.addEventListener("click", () => this.#act("links", (link) => (link.cut ? "mend" : "cut")));
    for (const select of Object.values(this.#select)) select.addEventListener("change", () => this.#show());
  }

  take(frame) {
    this.#section.hidden = !frame.net;
    if (!frame.net) return;
    this.#net = frame.net;
    this.#count(frame.t, frame.crowd);
    const now = performance.now();
    if (now - this.#shownAt < REFRESH_MS) return;
    this.#shownAt = now;
    this.#show();
  }

  #count(t, crowd) {
    const last = this.#missing.at(-1);
    // The server or the crowd's run began anew.
    if (last && (t < last[0] || (crowd?.missing ?? 0) < last[1])) this.#missing = [];
    this.#missing.push([t, crowd?.missing ?? 0]);
    while (this.#missing.length > 1 && t - this.#missing[0][0] > RECENT_S) this.#missing.shift();
  }

  async #act(what, deed) {
    const number = Number(this.#select[what].value);
    const one = this.#net?.[what][number];
    if (!one) return;
    const button = this.#button[what];
    button.disabled = true;
    try {
      const answer = await fetch(`demo/${what}/${number}/${deed(one)}`, { method: "POST" });
      this.#problem = answer.ok ? "" : (await answer.text()).trim();
    } catch {
      this.#problem = "the demo does not answer";
    }
    button.disabled = false;
  }

  #show() {
    const { relays, links } = this.#net;
    const shape = JSON.stringify([relays.length, links.map((link) => link.relays)]);
    if (shape !== this.#drawn) {
      this.#drawn = shape;
      this.#make();
    }
    const chosen = { relays: Number(this.#select.relays.value), links: Number(this.#select.links.value) };
    relays.forEach((relay, number) => this.#showRelay(relay, this.#relays[number], number === chosen.relays));
    links.forEach((link, number) => this.#showLink(link, this.#links[number], number === chosen.links));
    setText(this.#button.relays, relays[chosen.relays]?.up ? "Kill" : "Bring back");
    setText(this.#button.links, links[chosen.links]?.cut ? "Mend" : "Cut");
    this.#showWords();
  }

  #showRelay(relay, { group, count, rate }, isChosen) {
    group.setAttribute("class", `${relay.up ? "" : "down"} ${isChosen ? "chosen" : ""}`);
    setText(count, relay.up ? exact(relay.participants) : "×");
    const lost = relay.lost > 0 ? `${exact(relay.lost)} lost` : "";
    setText(rate, !relay.up ? lost || "killed" : lost || `${short(relay.deliveries_per_s)}/s`);
    rate.setAttribute("class", lost ? "small lost" : "small");
  }

  #showLink(link, { group, text }, isChosen) {
    group.setAttribute("class", `${link.up ? "" : "down"} ${isChosen ? "chosen" : ""}`);
    const measured = `${significant(link.round_trip_ms)} ms, ${significant(link.bits_per_s / 1e6)} Mbit/s`;
    setText(text, link.up ? measured : link.cut ? "cut" : "down");
  }

  #showWords() {
    const { relays, links } = this.#net;
    const missing = this.#missing.at(-1)[1] - this.#missing[0][1];
    const lost = relays.reduce((sum, relay) => sum + relay.lost, 0);
    const problems = [];
    if (this.#problem) problems.push(this.#problem);
    if (lost) problems.push(`${plural(lost, "participant", "participants")} without a relay`);
    if (missing) problems.push(`${plural(missing, "delivery", "deliveries")} missing in ${RECENT_S} s`);
    const down = [
      ...relays.filter((relay) => !relay.up).map((relay) => relay.name),
      ...links.filter((link) => !link.up).map((link) => this.#linkName(link)),
    ];
    const note = this.#section.querySelector("#net-note");
    const good = down.length ? "" : "participants in the circles, deliveries below";
    setText(note, problems.join(" · ") || good || "down, and nothing is missing");
    note.classList.toggle("bad", problems.length > 0);
    const words = down.length ? `Down: ${down.join(", ")}.` : "All are up.";
    setText(this.#section.querySelector("#net-words"), `${plural(relays.length, "relay", "relays")}. ${words}`);
  }

  #linkName(link) {
    return link.relays.map((relay) => this.#net.relays[relay].name).join(" – ");
  }

  /** Makes the elements anew, for other relays. */
  #make() {
    const { relays, links } = this.#net;
    const places = layout(relays.length, links);
    this.#svg.replaceChildren();
    this.#links = links.map((link, number) => this.#makeLink(number, ...link.relays.map((relay) => places[relay])));
    this.#relays = relays.map((relay, number) => this.#makeRelay(number, relay.name, places[number]));
    fill(this.#select.relays, relays.map((relay) => relay.name));
    fill(this.#select.links, links.map((link) => this.#linkName(link)));
    for (const part of [this.#select.links, this.#button.links]) part.disabled = links.length === 0;
  }

  #makeLink(number, from, to) {
    const ends = { x1: from.x, y1: from.y, x2: to.x, y2: to.y };
    const group = this.#makeGroup("links", number);
    group.append(make("line", ends), make("line", { ...ends, class: "touch" }));
    // On the outer side of the line, where nobody else's label is.
    const side = to.x < from.x ? "end" : "start";
    const x = (from.x + to.x) / 2 + (side === "end" ? -9 : 9);
    const text = make("text", { x, y: (from.y + to.y) / 2 + 1, class: `small ${side}` });
    group.append(text);
    return { group, text };
  }

  #makeRelay(number, name, { x, y }) {
    const group = this.#makeGroup("relays", number);
    const beside = x + RADIUS + LABEL;
    const title = make("text", { x: beside, y: y - 3 });
    title.textContent = name;
    const count = make("text", { x, y, class: "count" });
    const rate = make("text", { x: beside, y: y + 11, class: "small" });
    group.append(make("circle", { cx: x, cy: y, r: RADIUS }), title, count, rate);
    return { group, count, rate };
  }

  #makeGroup(what, number) {
    const group = make("g", {});
    group.addEventListener("click", () => {
      this.#select[what].value = String(number);
      this.#show();
    });
    this.#svg.append(group);
    return group;
  }
}

/** Where each relay stands: relay 0 above, those that are joined with it below, and so on. */
function layout(count, links) {
  const below = Array.from({ length: count }, () => []);
  for (const { relays: [near, far] } of links) below[near].push(far);
  const places = Array.from({ length: count }, () => ({ column: 0, depth: 0 }));
  let leaves = 0;
  const place = (relay, depth) => {
    places[relay].depth = depth;
    for (const other of below[relay]) place(other, depth + 1);
    const columns = below[relay].map((other) => places[other].column);
    places[relay].column = columns.length ? (columns[0] + columns.at(-1)) / 2 : leaves++;
  };
  if (count > 0) place(0, 0);
  const deepest = Math.max(...places.map((one) => one.depth), 1);
  const [top, bottom] = [EDGE + RADIUS, HEIGHT - EDGE - RADIUS];
  return places.map(({ column, depth }) => ({
    x: (WIDTH * (column + 0.55)) / Math.max(leaves, 1),
    y: top + ((bottom - top) * depth) / deepest,
  }));
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function fill(select, names) {
  select.replaceChildren(...names.map((name, number) => new Option(name, String(number))));
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
