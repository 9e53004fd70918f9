// Draws an overlay: relays in a ring, links between them, and one comtree on it.
// Never guesses and never decides: what it shows, and in which words, it is given.

const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 15;
const LABEL = 5; // from a circle to its labels
const LINE = 13; // from a line of a link's words to the next
const [WIDTH, HEIGHT] = [440, 190];
const CROWDED = 16; // so many relays have smaller circles, and only the chosen one has words

export class OverlayMap {
  #svg;
  #choose;
  #drawn = ""; // what the elements were made for
  #relays = [];
  #links = [];

  /** Calls `choose("relays" | "links", number)` when one is clicked on. */
  constructor(svg, choose) {
    this.#svg = svg;
    this.#choose = choose;
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  }

  /**
   * Relays have `name`, `count`, `note`, `lost`, `state` (up, draining, down), `core` and `root`; links have `ends`,
   * numbers of relays, and `up`, `tree`, `mesh` (of a meshed core, beside the tree), `brief`, `text`, and `load` if they are to have that. `chosen` has the numbers of the relay and the link that stand out.
   * Returns whether there are others than before.
   */
  show(relays, links, chosen) {
    const shape = JSON.stringify([relays.map((relay) => relay.name), links.map((link) => link.ends)]);
    const others = shape !== this.#drawn;
    if (others) {
      this.#drawn = shape;
      this.#make(relays, links);
    }
    links.forEach((link, number) => showLink(link, this.#links[number], number === chosen.links));
    relays.forEach((relay, number) => showRelay(relay, this.#relays[number], number === chosen.relays));
    return others;
  }

  #make(relays, links) {
    const size = relays.length > CROWDED ? RADIUS / 2 : RADIUS;
    this.#svg.classList.toggle("crowded", relays.length > CROWDED);
    const places = relays.map((_, number) => place(number, relays.length));
    this.#svg.replaceChildren();
    this.#links = links.map(({ ends }, number) => this.#makeLink(number, ...ends.map((end) => places[end])));
    // Words are above all lines, whichever cross there.
    this.#svg.append(...this.#links.flatMap(({ text, load }) => [text, load]));
    this.#relays = relays.map((relay, number) => this.#makeRelay(number, relay.name, places[number], size));
  }

  #makeLink(number, from, to) {
    const group = this.#makeGroup("links", number);
    const ends = { x1: from.x, y1: from.y, x2: to.x, y2: to.y };
    group.append(make("line", ends), make("line", { ...ends, class: "touch" }));
    const { x, y } = between(from, to);
    return { group, text: make("text", { x, y: y + 3 }), load: make("text", { x, y: y + 3 + LINE }) };
  }

  #makeRelay(number, name, { x, y }, size) {
    const group = this.#makeGroup("relays", number);
    const isLeft = x < WIDTH / 2 - 1;
    const words = { x: isLeft ? x - size - LABEL : x + size + LABEL, class: isLeft ? "end" : "start" };
    // Outwards of the circle, where no link leads.
    const line = y + 7 * ((2 * y) / HEIGHT - 1);
    const title = make("text", { ...words, y: line - 3 });
    title.textContent = name;
    const count = make("text", { x, y, class: "count" });
    const note = make("text", { ...words, y: line + 11, class: `small ${words.class}` });
    const ring = make("circle", { cx: x, cy: y, r: size + 4, class: "root" });
    group.append(ring, make("circle", { cx: x, cy: y, r: size }), title, count, note);
    return { group, count, note, side: words.class };
  }

  #makeGroup(what, number) {
    const group = make("g", {});
    group.addEventListener("click", () => this.#choose(what, number));
    this.#svg.append(group);
    return group;
  }
}

function showRelay(relay, { group, count, note, side }, isChosen) {
  const marks = [relay.state, relay.core && "core", relay.root && "is-root", isChosen && "chosen"];
  group.setAttribute("class", marks.filter(Boolean).join(" "));
  setText(count, relay.count);
  setText(note, relay.note);
  note.setAttribute("class", `small ${side} ${relay.lost ? "lost" : ""}`);
}

function showLink(link, { group, text, load }, isChosen) {
  const marks = [link.up ? "" : "down", link.tree && "tree", link.mesh && "mesh", isChosen && "chosen"];
  group.setAttribute("class", marks.filter(Boolean).join(" "));
  for (const words of [text, load]) {
    words.setAttribute("class", `small middle ${link.up ? "" : "lost"} ${isChosen ? "chosen" : ""}`);
  }
  // All that there is to say of every link would be too much to read.
  const isTold = isChosen || link.tree || link.mesh || !link.up;
  setText(text, isChosen ? link.text : isTold ? link.brief : "");
  setText(load, isTold && link.load ? link.load : "");
}

/** Where a relay stands: on an ellipse, the first one above. */
function place(number, count) {
  const angle = (2 * Math.PI * number) / Math.max(count, 1) - Math.PI / 2;
  const [wide, high] = [WIDTH / 2 - 100, HEIGHT / 2 - RADIUS - 6];
  return { x: WIDTH / 2 + wide * Math.cos(angle), y: HEIGHT / 2 + high * Math.sin(angle) };
}

/** Where a link has its words: in its middle, unless that is the map's, where all that lead across have theirs. */
function between(from, to) {
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const isAcross = Math.hypot(middle.x - WIDTH / 2, middle.y - HEIGHT / 2) < RADIUS;
  const share = isAcross ? 0.36 : 0.5;
  return { x: from.x + share * (to.x - from.x), y: from.y + share * (to.y - from.y) };
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
