// What each link carries of each comtree: a bar for each link, and in it a piece for each comtree.
// Never guesses: offered, sent and allowed bits are the server's numbers, and text from it goes in as text.

import { significant } from "./format.js";

const REFRESH_MS = 250;
const OTHER = "other";

export class LinkLoads {
  #section;
  #key;
  #rows;
  #shownAt = 0;

  constructor(section) {
    this.#section = section;
    this.#key = section.querySelector("#links-key");
    this.#rows = section.querySelector("#links-rows");
  }

  take(frame) {
    // What carries nothing says nothing, unless it is because it is down.
    const links = (frame.links ?? []).filter((link) => !link.up || link.comtrees.length > 0);
    this.#section.hidden = links.length === 0;
    const now = performance.now();
    if (this.#section.hidden || now - this.#shownAt < REFRESH_MS) return;
    this.#shownAt = now;
    this.#show(links);
  }

  #show(links) {
    const loads = links.flatMap((link) => link.comtrees);
    const comtrees = [...new Set(loads.map((load) => load.comtree))].filter((comtree) => comtree !== null);
    comtrees.sort((one, other) => one - other);
    const colour = (comtree) => (comtree === null ? OTHER : colours(comtrees.indexOf(comtree)));
    const named = comtrees.map((comtree) => [colour(comtree), `comtree ${comtree}`]);
    if (loads.some((load) => load.comtree === null)) named.push([OTHER, "other comtrees"]);
    fill(this.#key, named.length, makeKey);
    named.forEach(([load, text], i) => showKey(this.#key.children[i], load, text));
    // One scale for all, so that bars can be compared.
    const most = Math.max(1, ...links.map((link) => sum(link.comtrees.map(present))));
    fill(this.#rows, links.length, makeRow);
    links.forEach((link, i) => showRow(this.#rows.children[i], link, { most, colour }));
  }
}

/** What is there for the neighbour, whether it is sent or not. */
function present(load) {
  return Math.max(load.bits_offered, load.bits_out);
}

/** The colour of the so-many-th comtree; there are six. */
function colours(place) {
  return String(place % 6);
}

function makeKey() {
  const item = document.createElement("li");
  item.append(document.createElement("i"), document.createElement("span"));
  return item;
}

function showKey(item, load, text) {
  item.dataset.load = load;
  setText(item.lastElementChild, text);
}

function makeRow() {
  const row = document.createElement("li");
  const bar = document.createElement("div");
  bar.className = "links-bar";
  bar.setAttribute("role", "img");
  row.append(document.createElement("span"), document.createElement("b"), bar);
  return row;
}

function showRow(row, link, { most, colour }) {
  const [name, rate, bar] = row.children;
  const out = sum(link.comtrees.map((load) => load.bits_out));
  const offered = sum(link.comtrees.map(present));
  setText(name, link.name);
  name.title = link.name;
  // A part of what is offered waits in passing; only what is clearly more is said.
  const isLess = out < 0.95 * offered;
  setText(rate, !link.up ? "down" : isLess ? `${significant(out / 1e6)} of ${megabits(offered)}` : megabits(out));
  rate.className = link.up ? "" : "down";
  row.dataset.bits = String(out);
  const pieces = (link.up ? link.comtrees : []).flatMap((load) => [
    { load, bits: load.bits_out, waits: false },
    { load, bits: isLess ? present(load) - load.bits_out : 0, waits: true },
  ]).filter((piece) => piece.bits > 0);
  fill(bar, pieces.length, () => document.createElement("i"));
  pieces.forEach((piece, i) => showPiece(bar.children[i], piece, { most, colour }));
  const words = (link.up && link.comtrees.map(describe).join("; ")) || "nothing";
  if (bar.getAttribute("aria-label") !== words) bar.setAttribute("aria-label", words);
}

function showPiece(element, { load, bits, waits }, { most, colour }) {
  element.dataset.load = colour(load.comtree);
  element.dataset.comtree = load.comtree ?? OTHER;
  element.dataset.bits = String(bits);
  element.className = waits ? "waits" : "";
  element.title = describe(load);
  element.style.setProperty("--share", (bits / most).toFixed(4));
}

function describe(load) {
  const who = load.comtree === null ? "other comtrees" : `comtree ${load.comtree}`;
  const allowed = load.bits_allowed > 0 ? `, ${megabits(load.bits_allowed)} allowed` : "";
  return `${who}: ${megabits(load.bits_out)} of ${megabits(present(load))}${allowed}`;
}

function megabits(bits) {
  return `${significant(bits / 1e6)} Mbit/s`;
}

function sum(numbers) {
  return numbers.reduce((all, one) => all + one, 0);
}

/** Gives a list so many children. */
function fill(list, count, make) {
  while (list.children.length > count) list.lastElementChild.remove();
  while (list.children.length < count) list.append(make());
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
