// The console: joins the feed, the maps and the numbers.
// Never draws, never parses, never decides which avatar to look through; those live in the modules it joins.

import { BudgetControl } from "./budget.js";
import { Feed } from "./feed.js";
import { LinkLoads } from "./links.js";
import { WorldMap } from "./map.js";
import { Neighbours } from "./neighbours.js";
import { Panel } from "./panel.js";
import { RelayMap } from "./relays.js";
import { Scene } from "./scene.js";
import { ViewerChoice } from "./viewer.js";

const at = (id) => document.getElementById(id);
const scene = new Scene();
const choice = new ViewerChoice(scene);
const panel = new Panel(scene);
const relays = new RelayMap(at("net"));
let neighbours = null; // of a relay that is no demo's
const links = new LinkLoads(at("links"));
const budget = new BudgetControl(at("budget"), scene);
const map = new WorldMap(at("map"), scene, {
  pick: (id) => look(() => choice.choose(id)),
  next: () => look(() => choice.chooseNext()),
  automatic: () => look(() => choice.chooseAutomatically()),
  toggleFollow: () => setFollow(!map.follow),
});
const feed = new Feed("events", { hello: onHello, frame: onFrame, state: onState });

let frames = 0;
let hasMap = true;
let toAnnounce = null; // a viewer that a person chose and whose first frame has yet to come

function onHello(hello) {
  hasMap = Boolean(hello.has_map);
  if (hasMap) {
    scene.configure(hello);
    at("map").parentElement.style.setProperty("--aspect", scene.aspect);
  }
  panel.greet(hello);
}

function onFrame(frame) {
  const now = performance.now();
  if (hasMap) {
    scene.apply(frame, now);
    const id = choice.update(now);
    map.lookThrough(id);
    feed.watch(id);
    map.refresh();
    showNote();
    budget.take(frame);
    announce();
  }
  panel.take(frame);
  if (frame.net || hasMap) {
    relays.take(frame);
  } else {
    neighbours ??= new Neighbours(at("net"));
    neighbours.take();
  }
  links.take(frame);
  document.body.dataset.frames = String(++frames);
}

function onState(state) {
  document.body.dataset.state = state;
  panel.setState(state);
}

function look(choose) {
  const before = choice.current;
  choose();
  if (choice.current === before) return;
  toAnnounce = choice.current;
  map.lookThrough(choice.current);
  feed.watch(choice.current);
  map.refresh();
}

function setFollow(follow) {
  map.follow = follow;
  at("view-world").setAttribute("aria-pressed", String(!follow));
  at("view-viewer").setAttribute("aria-pressed", String(follow));
  map.refresh();
}

function showNote() {
  const note = at("map-note");
  note.hidden = scene.avatarCount > 0;
  if (!note.hidden) note.textContent = "Nobody is in this world yet.";
}

function announce() {
  if (toAnnounce === null || scene.viewer?.id !== toAnnounce) return;
  at("announce").textContent = `Viewer ${toAnnounce} receives ${scene.receivedCount} of ${scene.avatarCount - 1} other avatars`;
  toAnnounce = null;
}

at("next-viewer").addEventListener("click", () => look(() => choice.chooseNext()));
at("view-world").addEventListener("click", () => setFollow(false));
at("view-viewer").addEventListener("click", () => setFollow(true));
feed.start();
