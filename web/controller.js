// A controller's console: the overlay, the trees of a world on it, and what happens.
// It only reads. The secret comes behind the address's #, which no browser sends, or from the form; it is kept for this tab alone.

import { exact, plural, significant } from "./format.js";
import { Happenings } from "./happenings.js";
import { OverlayMap } from "./overlay.js";
import { rows, setText } from "./table.js";

const EVERY_MS = 1000;
const AGAIN_MS = 2000;

const at = (id) => document.getElementById(id);
const map = new OverlayMap(at("net-map"), choose);
const happenings = new Happenings(at("happenings"));
const chosen = { relays: -1, links: -1 };
let secret = location.hash.slice(1) || sessionStorage.getItem("secret") || "";
let overlay = null;

/** A refusal that the same secret meets again. */
class WrongSecret extends Error {}

async function ask(path) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${secret}` } });
  if (answer.status === 401) throw new WrongSecret("That is not the secret of this controller.");
  if (!answer.ok) throw new Error(`The controller answers ${answer.status}.`);
  return answer;
}

async function look() {
  const world = at("world").value;
  const query = world ? `?world=${encodeURIComponent(world)}` : "";
  overlay = await (await ask(`v1/overlay${query}`)).json();
  setState("live", "Live");
  at("ask").hidden = true;
  at("main").hidden = false;
  show();
}

/** Follows the events for as long as they come. They are server-sent events, which only `fetch` asks for with a secret. */
async function follow() {
  const reader = (await ask("v1/events")).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (text + value).split("\n");
    text = lines.pop();
    const told = lines.filter((line) => line.startsWith("data:")).map((line) => JSON.parse(line.slice(5)));
    happenings.take(told);
  }
}

/** Does something again and again until the secret is wrong. */
async function repeat(what, pause) {
  for (;;) {
    try {
      await what();
    } catch (error) {
      if (error instanceof WrongSecret) return askForSecret(error.message);
      setState("lost", "Lost: trying again");
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

function start() {
  if (!secret) return askForSecret("");
  sessionStorage.setItem("secret", secret);
  repeat(look, EVERY_MS);
  repeat(follow, AGAIN_MS);
}

function askForSecret(why) {
  secret = "";
  sessionStorage.removeItem("secret");
  setState("lost", "Not let in");
  at("main").hidden = true;
  at("ask").hidden = false;
  setText(at("ask-why"), why);
}

function choose(what, number) {
  chosen[what] = chosen[what] === number ? -1 : number;
  show();
}

function show() {
  const { relays, links, worlds, world } = overlay;
  setText(at("sum-relays"), exact(relays.length));
  setText(at("sum-worlds"), exact(overlay.world_count));
  setText(at("sum-members"), exact(relays.reduce((sum, relay) => sum + relay.members, 0)));
  options(at("world"), worlds.map(({ name, members }) => [name, `${name} (${exact(members)})`]), world?.name);
  const comtrees = world?.comtrees ?? [];
  options(at("comtree"), comtrees.map(({ id }) => [String(id), String(id)]), at("comtree").value);
  const comtree = comtrees.find(({ id }) => String(id) === at("comtree").value);
  showMap(comtree);
  rows(at("relays"), relays.map((relay) => [
    relay.name, relay.state, exact(relay.members), `${exact(relay.taken)} of ${exact(relay.places)}`, relay.address,
  ]));
  rows(at("links"), links.map((link) => [
    exact(link.id), link.ends.join(" – "), link.usable ? ms(link) : "down",
    ...[link.load, link.reserved, [link.bits]].map((rates) => rates.map(megabits).join(" / ")), link.why,
  ]));
}

function showMap(comtree) {
  const { relays, links } = overlay;
  const numbers = new Map(relays.map((relay, number) => [relay.name, number]));
  const hops = new Map((comtree?.tree ?? []).map((hop) => [hop.relay, hop]));
  const branches = new Set([...hops.values()].map((hop) => hop.link));
  const mesh = new Set([...hops.values()].flatMap((hop) => hop.peers ?? []).map((peer) => peer.link));
  const onMap = relays.map((relay) => {
    const hop = hops.get(relay.name);
    return {
      name: relay.name,
      count: hop ? exact(hop.members) : "",
      note: relay.state === "up" ? plural(relay.members, "member", "members") : relay.state,
      lost: relay.state === "gone",
      state: relay.state === "gone" || relay.state === "joining" ? "down" : relay.state,
      core: Boolean(hop?.core),
      root: Boolean(hop && !hop.above),
    };
  });
  const drawn = links.filter((link) => link.ends.every((end) => numbers.has(end)));
  const lines = drawn.map((link) => ({
    ends: link.ends.map((end) => numbers.get(end)),
    up: link.usable,
    tree: branches.has(link.id),
    mesh: mesh.has(link.id),
    brief: link.usable ? ms(link) : "down",
    text: link.usable ? `${ms(link)}, ${share(link)}` : "down",
    load: link.usable ? load(link) : "",
  }));
  map.show(onMap, lines, chosen);
  at("key-mesh").hidden = mesh.size === 0;
  setText(at("net-words"), words(comtree, mesh));
  setText(at("net-broken"), comtree?.broken ?? "");
}

/** What the map shows, for those who do not see it, and why. */
function words(comtree, mesh) {
  if (!comtree) return "There is no world yet.";
  if (comtree.tree.length === 0) return "Nobody is on this comtree.";
  const size = `${plural(comtree.tree.length, "relay carries", "relays carry")} it: ${comtree.why}`;
  const core = comtree.tree.filter((hop) => hop.core).length;
  const beside = plural(mesh.size, "link", "links");
  const meshed = mesh.size === 0 ? [] : [`The ${exact(core)} relays of its core are a mesh, with ${beside} beside the tree.`];
  const apart = comtree.tree.filter((hop) => hop.outside).map((hop) => `${hop.relay} is not in the core: ${hop.outside}.`);
  const more = [...meshed, ...apart];
  return more.length === 0 ? size : `${size}. ${more.join(" ")}`;
}

/** How much of the fuller direction is reserved. */
function share(link) {
  return `${Math.round((100 * Math.max(...link.reserved)) / Math.max(link.bits, 1))} % reserved`;
}

/** What the fuller direction carries, if its ends have said so. */
function load(link) {
  const known = link.load.filter((bits) => bits !== null);
  return known.length === 0 ? "" : `${megabits(Math.max(...known))} Mbit/s`;
}

function ms(link) {
  return `${significant(link.delay_us / 1000)} ms`;
}

/** Millions of bits a second, or a dash for what nobody has said. */
function megabits(bits) {
  return bits === null ? "–" : significant(bits / 1e6);
}

/** Gives a list these choices, unless it has them, and chooses one. */
function options(select, choices, value) {
  const shape = JSON.stringify(choices);
  if (select.dataset.shape !== shape) {
    select.dataset.shape = shape;
    select.replaceChildren(...choices.map(([name, text]) => new Option(text, name)));
  }
  if (value && value !== select.value) select.value = value;
  if (select.selectedIndex < 0 && choices.length > 0) select.selectedIndex = 0;
}

function setState(state, words) {
  document.body.dataset.state = state;
  setText(at("connection").lastElementChild, words);
}

at("world").addEventListener("change", () => look().catch(() => {}));
at("comtree").addEventListener("change", show);
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  secret = at("secret").value.trim();
  start();
});
start();
