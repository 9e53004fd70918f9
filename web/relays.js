// The demo's overlay: who is joined with whom, which way the world's tree takes, what is down; and the buttons that break and move it.
// Never guesses: what is up, cut or lost is what the server says of each relay and link.

import { exact, plural, short, significant } from "./format.js";
import { Happenings } from "./happenings.js";
import { OverlayMap } from "./overlay.js";

const REFRESH_MS = 250;
const RECENT_S = 10; // over which missing deliveries are counted

export class RelayMap {
  #section;
  #map;
  #happenings;
  #select;
  #button;
  #net = null;
  #shownAt = 0;
  #missing = []; // [t, missing], oldest first
  #problem = "";

  constructor(section) {
    const at = (id) => section.querySelector(`#net-${id}`);
    this.#section = section;
    this.#map = new OverlayMap(at("map"), (what, number) => this.#choose(what, number));
    this.#happenings = new Happenings(at("happenings"));
    this.#select = { relays: at("relay"), links: at("link") };
    this.#button = { kill: at("kill"), drain: at("drain"), cut: at("cut"), move: at("move") };
    const onClick = (button, what, deed) => button.addEventListener("click", () => this.#act(button, what, deed));
    onClick(this.#button.kill, "relays", (relay) => (relay.up ? "kill" : "revive"));
    onClick(this.#button.drain, "relays", (relay) => (relay.drains ? "undrain" : "drain"));
    onClick(this.#button.cut, "links", (link) => (link.cut ? "mend" : "cut"));
    onClick(this.#button.move, "relays", () => "root");
    for (const select of Object.values(this.#select)) select.addEventListener("change", () => this.#show());
  }

  take(frame) {
    this.#section.hidden = !frame.net;
    if (!frame.net) return;
    this.#net = frame.net;
    this.#happenings.take(frame.net.events);
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

  #choose(what, number) {
    this.#select[what].value = String(number);
    this.#show();
  }

  async #act(button, what, deed) {
    const number = Number(this.#select[what].value);
    const one = this.#net?.[what][number];
    if (!one) return;
    button.disabled = true;
    try {
      const answer = await fetch(`demo/${what}/${one.id ?? number}/${deed(one)}`, { method: "POST" });
      this.#problem = answer.ok ? "" : (await answer.text()).trim();
    } catch {
      this.#problem = "the demo does not answer";
    }
    button.disabled = false;
  }

  #show() {
    const { relays, links } = this.#net;
    const chosen = { relays: Number(this.#select.relays.value), links: Number(this.#select.links.value) };
    const isNew = this.#map.show(relays.map(relayOnMap), links.map(linkOnMap), chosen);
    if (isNew) {
      fill(this.#select.relays, relays.map((relay) => relay.name));
      fill(this.#select.links, links.map((link) => this.#linkName(link)));
    }
    const [relay, link] = [relays[chosen.relays], links[chosen.links]];
    setText(this.#button.kill, relay?.up === false ? "Bring back" : "Kill");
    setText(this.#button.drain, relay?.drains ? "Undrain" : "Drain");
    setText(this.#button.cut, link?.cut ? "Mend" : "Cut");
    for (const part of [this.#select.links, this.#button.cut]) part.disabled = links.length === 0;
    this.#showWords();
  }

  #showWords() {
    const { relays, links, why } = this.#net;
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
    const good = down.length ? "" : "participants, and deliveries a second";
    setText(note, problems.join(" · ") || good || "down, and nothing is missing");
    note.classList.toggle("bad", problems.length > 0);
    const words = down.length ? `Down: ${down.join(", ")}.` : "All are up.";
    setText(this.#section.querySelector("#net-words"), `${plural(relays.length, "relay", "relays")}. ${words} ${why}`);
  }

  #linkName(link) {
    return link.relays.map((relay) => this.#net.relays[relay].name).join(" – ");
  }
}

function relayOnMap(relay) {
  const lost = relay.lost > 0 ? `${exact(relay.lost)} lost` : "";
  const usual = relay.drains ? "drains" : `${short(relay.deliveries_per_s)}/s`;
  return {
    name: relay.name,
    count: relay.up ? exact(relay.participants) : "×",
    note: lost || (relay.up ? usual : "killed"),
    lost: Boolean(lost),
    state: !relay.up ? "down" : relay.drains ? "draining" : "up",
    core: relay.core,
    root: relay.root,
  };
}

function linkOnMap(link) {
  const brief = link.up ? `${significant(link.round_trip_ms)} ms` : link.cut ? "cut" : "down";
  const text = link.up ? `${brief}, ${significant(link.bits_per_s / 1e6)} Mbit/s` : brief;
  return { ends: link.relays, up: link.up, tree: link.tree, brief, text };
}

function fill(select, names) {
  const before = select.value;
  select.replaceChildren(...names.map((name, number) => new Option(name, String(number))));
  if (Number(before) < names.length && before !== "") select.value = before;
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
