// What every canvas here needs: sharp pixels at any device ratio, and the style sheet's colours.
// Never draws a picture of its own.

const names = ["ink", "quiet", "panel", "line", "outside", "ground", "grid", "unheard", "heard", "far", "viewer", "cell", "far-cell", "accent", "second"];
const watchers = new Set();

/** The colours of the current theme, by the names of the custom properties in console.css. */
export const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of names) colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.font = style.getPropertyValue("--font").trim();
  for (const redraw of watchers) redraw();
}

readColours();
for (const query of ["(prefers-color-scheme: light)", "(prefers-contrast: more)"]) {
  matchMedia(query).addEventListener("change", readColours);
}

const stillness = matchMedia("(prefers-reduced-motion: reduce)");
export const prefersStillness = () => stillness.matches;

/** Keeps `canvas` as sharp as the screen and calls `redraw` when its size or the theme changes. */
export function fit(canvas, redraw) {
  const size = { width: 0, height: 0 };
  const context = canvas.getContext("2d");
  const measure = () => {
    const ratio = window.devicePixelRatio || 1;
    size.width = canvas.clientWidth;
    size.height = canvas.clientHeight;
    canvas.width = Math.max(1, Math.round(size.width * ratio));
    canvas.height = Math.max(1, Math.round(size.height * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    redraw();
  };
  new ResizeObserver(measure).observe(canvas);
  addEventListener("resize", measure); // moving to another screen changes the ratio, not the box
  watchers.add(redraw);
  return { context, size };
}
