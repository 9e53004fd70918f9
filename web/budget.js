// Budgets: a switch that has the relays send everything to everyone, a slider for what the viewer is sent while it
// is off, and how often the viewer hears of who is near and who is far.
// Never decides what is left out; the relays do. The switch shows what the demo says, whichever page asked for it.

import { significant } from "./format.js";

const ASK_AGAIN_MS = 700; // the demo needs a moment until its frames say what was asked for
const [LEAST, MOST] = [50_000, 500_000]; // bits a second, at the slider's ends: from the floor of some fifty avatars up
const BANDS = 4; // of distance, up to the interest radius
const REFRESH_MS = 250; // between changes of numbers, so that they can be read

export class BudgetControl {
  #section;
  #scene;
  #slider;
  #everything;
  #viewer = null;
  #everyone = null; // bits a second; null for everything
  #asked = -Infinity; // when
  #refreshed = -Infinity;
  #problem = "";

  constructor(section, scene) {
    this.#section = section;
    this.#scene = scene;
    this.#slider = section.querySelector("#budget-bits");
    this.#everything = section.querySelector("#budget-everything");
    this.#slider.addEventListener("input", () => this.#show());
    this.#slider.addEventListener("change", () => this.#askForViewer());
    this.#everything.addEventListener("change", () => this.#ask("all", this.#wanted ?? "everything"));
    this.#show();
  }

  /** Bits a second that a person wants the viewer to be sent; null for everything. */
  get #wanted() {
    if (this.#everything.checked) return null;
    const share = Number(this.#slider.value) / Number(this.#slider.max);
    return Math.round(LEAST * (MOST / LEAST) ** share);
  }

  take(frame) {
    this.#viewer = frame.viewer ?? null;
    this.#everyone = frame.everyone_bits ?? null;
    const now = performance.now();
    if (now - this.#asked > ASK_AGAIN_MS) {
      this.#everything.checked = this.#everyone === null;
      // Another viewer has what everyone has until it is asked for something else.
      const wanted = this.#wanted;
      if (wanted !== null && this.#viewer && this.#viewer.limit_bits !== wanted) this.#askForViewer();
    }
    if (now - this.#refreshed > REFRESH_MS) {
      this.#refreshed = now;
      this.#showRates();
    }
    this.#show();
  }

  #askForViewer() {
    this.#show();
    if (this.#viewer && this.#wanted !== null) this.#ask(this.#viewer.id, this.#wanted);
  }

  async #ask(who, what) {
    this.#asked = performance.now();
    try {
      const answer = await fetch(`demo/viewers/${who}/${what}`, { method: "POST" });
      this.#problem = answer.ok ? "" : (await answer.text()).trim();
    } catch {
      this.#problem = "the demo does not answer";
    }
    this.#show();
  }

  #show() {
    const wanted = this.#wanted;
    this.#slider.disabled = wanted === null;
    const text = wanted === null ? "everything" : kilobits(wanted);
    this.#slider.setAttribute("aria-valuetext", text);
    setText(this.#section.querySelector("#budget-text"), this.#problem || text);
    this.#section.dataset.limit = String(this.#viewer?.limit_bits ?? "");
    this.#section.dataset.everyone = String(this.#everyone ?? "");
    const note = this.#everyone === null
      ? "Everyone is sent everything."
      : `Everyone else is sent ${kilobits(this.#everyone)} at most: what is far comes less often first.`;
    setText(this.#section.querySelector("#budget-note"), note);
  }

  #showRates() {
    const list = this.#section.querySelector("#budget-rates");
    const width = this.#scene.radius / BANDS;
    const rates = this.#scene.ratesByDistance(BANDS);
    const most = Math.max(...rates.map((rate) => rate ?? 0), 1e-9);
    while (list.children.length < BANDS) {
      const band = document.createElement("div");
      band.append(document.createElement("dt"), document.createElement("dd"));
      list.append(band);
    }
    rates.forEach((rate, number) => {
      const band = list.children[number];
      setText(band.firstElementChild, `${metres(number * width)}–${metres((number + 1) * width)} m`);
      setText(band.lastElementChild, rate === null ? "–" : `${rate.toFixed(1)}/s`);
      band.dataset.value = rate ?? "";
      band.style.setProperty("--share", ((rate ?? 0) / most).toFixed(3));
    });
  }
}

const kilobits = (bits) => `${significant(bits / 1000)} kbit/s`;
const metres = (n) => String(Math.round(n * 10) / 10);

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
