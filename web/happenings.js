// What the controller tells, as lines: newest first, the same of several in one.
// Never invents: an event without a sentence of its own is shown as it came.

import { plural } from "./format.js";

const MOST = 60;
const FOLDED = { admitted: "let in", left: "gone", refused: "refused" };
const ROUTINE = new Set(["renewed"]); // every member's, every 20 seconds
const WORDS = {
  refused: (e) => `${e.world}: ${e.address} was refused: ${e.why}`,
  not_let_in: (e, times) => `${e.world}: not let in${times > 1 ? ` (${times} times)` : ""}: ${e.why}`,
  reshaped: (e) => `${e.world}: comtree ${e.comtree} has a new tree: ${e.why}`,
  broken: (e) => `${e.world}: no whole tree for comtree ${e.comtree}: ${e.why}`,
  areas_changed: (e) => `${e.world}: its areas change, step ${e.step}`,
  relay_lost: (e) => `${e.relay} is lost`,
  relay_found: (e) => `${e.relay} is back`,
  relay_registered: (e) => `${e.relay} has registered`,
  relay_draining: (e) => `${e.relay} drains`,
  relay_removing: (e) => `${e.relay} drains, and is removed then`,
  relay_serving: (e) => `${e.relay} takes members again`,
  relay_removed: (e) => `${e.relay} was taken away`,
  link_up: (e) => `link ${e.link} is up`,
  link_down: (e) => `link ${e.link} is down`,
  link_damped: (e) => `link ${e.link} fails again and again, and is left alone for a while`,
};
const BAD = new Set(["refused", "not_let_in", "broken", "relay_lost", "link_down", "link_damped"]);

export class Happenings {
  #list;
  #lines = []; // { at, event, times }, newest first

  constructor(list) {
    this.#list = list;
  }

  /** Takes events, oldest first. Each has `event` and the fields that go with it, and may have `ago_s`. */
  take(events) {
    for (const { ago_s, ...event } of events) {
      if (ROUTINE.has(event.event)) continue;
      const at = clock(ago_s ?? 0);
      const times = event.times ?? 1;
      this.#lines.unshift({ at, event, times: times + this.#takeBack(event) });
    }
    this.#lines.length = Math.min(this.#lines.length, MOST);
    if (events.length > 0) this.#show();
  }

  /** Takes a line out that is told with this event, and says how often it was so. */
  #takeBack(event) {
    const isPlace = event.event === "not_let_in";
    if (!isPlace && !(event.event in FOLDED)) return 0;
    // Where there is no room, somebody may ask all the time: one line for each place, wherever it stands by now.
    const lines = isPlace ? this.#lines : this.#lines.slice(0, 1);
    const fields = ["event", "world", "where"];
    const found = lines.findIndex(({ event: of }) => fields.every((field) => of[field] === event[field]));
    return found < 0 ? 0 : this.#lines.splice(found, 1)[0].times;
  }

  #show() {
    this.#list.replaceChildren(...this.#lines.map(({ at, event, times }) => {
      const line = document.createElement("li");
      const time = document.createElement("time");
      time.textContent = at;
      line.append(time, words(event, times));
      line.classList.toggle("bad", BAD.has(event.event));
      return line;
    }));
  }
}

function words(event, times) {
  if (event.event in FOLDED && (times > 1 || event.event !== "refused")) {
    const who = times === 1 ? event.address : plural(times, "member", "members");
    return `${event.world}: ${who} ${FOLDED[event.event]}${times > 1 && event.why ? `: ${event.why}` : ""}`;
  }
  if (event.event in WORDS) return WORDS[event.event](event, times);
  const { event: name, ...fields } = event;
  const rest = Object.entries(fields).map(([field, value]) => `${field} ${JSON.stringify(value)}`);
  return [name.replaceAll("_", " "), ...rest].join(", ");
}

function clock(agoSeconds) {
  return new Date(Date.now() - 1000 * agoSeconds).toTimeString().slice(0, 8);
}
