// One relay's part of the overlay: its neighbours on a map, and what it has of each comtree in a table.
// Never guesses: all of it is what the relay says of itself at `net`. A demo's page has the map of all its relays instead.

import { exact, plural, significant } from "./format.js";
import { OverlayMap } from "./overlay.js";
import { rows, setText } from "./table.js";

const EVERY_MS = 2000;

export class Neighbours {
  #section;
  #map;
  #table;
  #chosen = { relays: -1, links: -1 };
  #net = null;
  #askedAt = -Infinity;

  constructor(section) {
    this.#section = section;
    this.#map = new OverlayMap(section.querySelector("#net-map"), (what, number) => this.#choose(what, number));
    this.#table = section.querySelector("#net-comtrees");
  }

  /** Asks now and then, as long as frames come. */
  take() {
    const now = performance.now();
    if (now - this.#askedAt < EVERY_MS) return;
    this.#askedAt = now;
    this.#ask();
  }

  async #ask() {
    try {
      const answer = await fetch("net");
      if (!answer.ok) return;
      this.#net = await answer.json();
    } catch {
      return; // the feed says that the relay does not answer
    }
    this.#show();
  }

  #choose(what, number) {
    this.#chosen[what] = this.#chosen[what] === number ? -1 : number;
    this.#show();
  }

  #show() {
    const { links, comtrees, routes, groups } = this.#net;
    this.#section.hidden = links.length === 0;
    if (this.#section.hidden) return;
    for (const part of [".net-deeds", ".happenings"]) this.#section.querySelector(part).hidden = true;
    const branches = comtrees.flatMap((comtree) => comtree.branches);
    const participants = comtrees.reduce((sum, comtree) => sum + comtree.participants, 0);
    const own = {
      name: "this relay", count: exact(participants), note: participants === 1 ? "participant" : "participants",
      lost: false, state: "up", core: comtrees.some((comtree) => comtree.core), root: false,
    };
    const neighbours = links.map((link) => {
      const roles = new Set(branches.filter((branch) => branch.link === link.name).map((branch) => branch.role));
      return {
        name: link.name, count: "", note: [...roles].join(", "), lost: false, state: link.up ? "up" : "down",
        core: roles.has("core") || [...roles].some((role) => role.endsWith("-peer")), root: false,
      };
    });
    const lines = links.map((link, number) => {
      const of = (role) => branches.some((branch) => branch.link === link.name && role(branch.role));
      return {
        ends: [0, number + 1], up: link.up, brief: brief(link), text: text(link),
        tree: of((role) => role !== "standby" && !role.endsWith("-peer")), mesh: of((role) => role.endsWith("-peer")),
      };
    });
    this.#map.show([own, ...neighbours], lines, this.#chosen);
    const down = links.filter((link) => !link.up).map((link) => link.name);
    const words = down.length ? `Down: ${down.join(", ")}` : `${plural(links.length, "link", "links")} up`;
    setText(this.#section.querySelector("#net-heading"), "Neighbours");
    setText(this.#section.querySelector("#net-note"), words);
    setText(this.#section.querySelector("#net-words"), `${words}: ${links.map((link) => `${link.name} ${text(link)}`).join("; ")}.`);
    this.#table.hidden = false;
    const count = (list, id, isCut) => `${exact(list.filter((one) => one.comtree === id).length)}${isCut ? "+" : ""}`;
    rows(this.#table.tBodies[0], comtrees.map((comtree) => [
      exact(comtree.id), place(comtree), comtree.branches.map((branch) => `${branch.link} (${branch.role})`).join(", ") || "–",
      exact(comtree.participants), count(routes, comtree.id, this.#net.routes_cut), count(groups, comtree.id, this.#net.groups_cut),
    ]));
  }
}

/** Where a relay is on a comtree. */
function place({ core, branches }) {
  const parent = branches.find((branch) => branch.role === "parent");
  return core ? "core" : parent ? `below ${parent.link}` : "alone";
}

function brief(link) {
  return !link.up ? "down" : link.round_trip_ms === null ? "up" : `${significant(link.round_trip_ms)} ms`;
}

function text(link) {
  const rate = `${significant((link.bits_in + link.bits_out) / 1e6)} Mbit/s`;
  const loss = Math.max(link.loss_in, link.loss_out);
  const lost = loss > 0 ? `, ${significant(100 * loss)} % lost` : "";
  return link.up ? `${brief(link)}, ${rate}${lost}` : "down";
}
