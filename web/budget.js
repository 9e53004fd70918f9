// The viewer's budget: a slider for what its relay sends it, and a switch that sends it everything.
// Never draws, and never decides what is left out; the relay does.

import { significant } from "./format.js";

const ASK_AGAIN_MS = 700; // the demo needs a moment until its frames say what was asked for
const [LEAST, MOST] = [50_000, 500_000]; // bits a second, at the slider's ends: from the floor of some fifty avatars up

export class BudgetControl {
  #section;
  #slider;
  #everything;
  #viewer = null;
  #asked = 0; // when
  #problem = "";

  constructor(section) {
    this.#section = section;
    this.#slider = section.querySelector("#budget-bits");
    this.#everything = section.querySelector("#budget-everything");
    this.#slider.addEventListener("input", () => this.#show());
    this.#slider.addEventListener("change", () => this.#ask());
    this.#everything.addEventListener("change", () => this.#ask());
    this.#show();
  }

  /** Bits a second that a person wants; null for everything. */
  get #wanted() {
    if (this.#everything.checked) return null;
    const share = Number(this.#slider.value) / Number(this.#slider.max);
    return Math.round(LEAST * (MOST / LEAST) ** share);
  }

  take(frame) {
    this.#viewer = frame.viewer ?? null;
    const limit = this.#viewer?.limit_bits ?? null;
    // Another viewer, or one that has joined anew, has no budget until it is asked for again.
    if (this.#viewer && limit !== this.#wanted && performance.now() - this.#asked > ASK_AGAIN_MS) this.#ask();
    this.#show();
  }

  async #ask() {
    this.#show();
    if (!this.#viewer) return;
    this.#asked = performance.now();
    try {
      const answer = await fetch(`demo/viewers/${this.#viewer.id}/${this.#wanted ?? "everything"}`, { method: "POST" });
      this.#problem = answer.ok ? "" : (await answer.text()).trim();
    } catch {
      this.#problem = "the demo does not answer";
    }
    this.#show();
  }

  #show() {
    const wanted = this.#wanted;
    this.#slider.disabled = wanted === null;
    const text = wanted === null ? "everything" : `${significant(wanted / 1000)} kbit/s`;
    this.#slider.setAttribute("aria-valuetext", text);
    setText(this.#section.querySelector("#budget-text"), this.#problem || text);
    const limit = this.#viewer?.limit_bits ?? null;
    this.#section.dataset.limit = String(limit ?? "");
    this.#section.querySelector("#budget-note").hidden = limit === null;
  }
}

// Unchanged text is left alone: a live region would otherwise be read out again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
