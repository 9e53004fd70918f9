// Numbers as short text. Never touches the document; an absent number is always an en dash.

const NONE = "–";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (n) => typeof n === "number" && Number.isFinite(n);

/** Three significant digits with a k/M/G suffix; whole and grouped below 10,000. */
export function short(n) {
  if (!known(n)) return NONE;
  if (Math.abs(n) < 9999.5) return grouped.format(n);
  for (const [unit, suffix] of [[1e3, "k"], [1e6, "M"]]) {
    if (Math.abs(n) < unit * 999.5) return significant(n / unit) + suffix;
  }
  return significant(n / 1e9) + "G";
}

/** Every digit: for counts that must be seen to be equal. */
export function exact(n) {
  return known(n) ? grouped.format(n) : NONE;
}

/** A small quantity (ms, µs, a ratio) to three significant digits, without trailing noise above 100. */
export function significant(n) {
  if (!known(n)) return NONE;
  if (n === 0) return "0";
  const size = Math.abs(n);
  return n.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** [number, unit] with decimal prefixes, the way links are sold. */
export function bytes(n) {
  if (!known(n)) return [NONE, "B"];
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (n >= unit) return [significant(n / unit), name];
  }
  return [grouped.format(n), "B"];
}

export function percent(share) {
  return known(share) ? `${significant(share * 100)} %` : NONE;
}

/** a / b as text, or a dash where the ratio means nothing. */
export function ratio(a, b) {
  return known(a) && known(b) && b > 0 ? significant(a / b) : NONE;
}

export function plural(n, one, many) {
  return `${exact(n)} ${n === 1 ? one : many}`;
}
