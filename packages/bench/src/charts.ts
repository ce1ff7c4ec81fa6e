/** Small static charts as SVG text: no library, no script, readable on a phone, the numbers written beside the bars. */

const PALETTE = ["#2f6f9f", "#c8553d", "#588157", "#8e6c8a", "#b08900"];

/** In user units, so that text is 12 px on a phone and 16 px at the most (see the page's style). */
const WIDTH = 400;

const escapeXml = (text: string) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** Characters that fit into the width: text in SVG does not break. */
const FITS = 62;

/** A label above its bar, cut in the middle where it is too long; the whole of it is its tooltip. */
function label(text: string, y: number): string {
  const cut = text.length > FITS ? `${text.slice(0, FITS / 2)}…${text.slice(1 - FITS / 2)}` : text;
  return `<text x="0" y="${y}" class="label"><title>${escapeXml(text)}</title>${escapeXml(cut)}</text>`;
}

export interface Bar {
  label: string;
  /** One value per series, stacked. */
  values: number[];
  /** What is written at the end of the bar. */
  text: string;
}

/** Horizontal stacked bars: one row per label, one colour per series. */
export function barChart(title: string, series: readonly string[], bars: readonly Bar[]): string {
  const width = WIDTH;
  const row = 34;
  const top = 4;
  const height = top + bars.length * row + 8;
  const most = Math.max(...bars.map((bar) => bar.values.reduce((a, b) => a + b, 0)), Number.MIN_VALUE);
  const scale = (width - 110) / most;
  const rows = bars.map((bar, index) => {
    const y = top + index * row;
    let x = 0;
    const parts = bar.values.map((value, k) => {
      const rect = `<rect x="${x.toFixed(1)}" y="${y + 14}" width="${Math.max(0, value * scale).toFixed(1)}" height="14" fill="${colour(k)}"/>`;
      x += value * scale;
      return rect;
    });
    return `${parts.join("")}${label(bar.label, y + 10)}<text x="${(x + 6).toFixed(1)}" y="${y + 25}">${escapeXml(bar.text)}</text>`;
  });
  return figure(title, width, height, series, rows.join(""));
}

export interface Line {
  name: string;
  points: readonly (readonly [number, number])[];
}

/** Lines over a common x axis that both start at zero. */
export function lineChart(
  title: string,
  lines: readonly Line[],
  axes: { x: (value: number) => string; y: (value: number) => string },
): string {
  const width = WIDTH;
  const height = 220;
  const [left, top, right, bottom] = [8, 20, width - 8, height - 24];
  const all = lines.flatMap((line) => line.points);
  const maxX = Math.max(...all.map(([x]) => x), Number.MIN_VALUE);
  const maxY = Math.max(...all.map(([, y]) => y), Number.MIN_VALUE);
  const place = ([x, y]: readonly [number, number]) =>
    `${(left + (x / maxX) * (right - left)).toFixed(1)},${(bottom - (y / maxY) * (bottom - top)).toFixed(1)}`;
  const drawn = lines.map(
    (line, k) =>
      `<polyline fill="none" stroke="${colour(k)}" stroke-width="2" points="${line.points.map(place).join(" ")}"/>`,
  );
  const frame =
    `<line x1="${left}" y1="${bottom}" x2="${right}" y2="${bottom}" stroke="#999"/>` +
    `<text x="${left}" y="${top - 4}">${escapeXml(axes.y(maxY))}</text>` +
    `<text x="${right}" y="${height - 6}" text-anchor="end">${escapeXml(axes.x(maxX))}</text>`;
  return figure(
    title,
    width,
    height,
    lines.map((line) => line.name),
    frame + drawn.join(""),
  );
}

export interface Interval {
  /** What is written above it. */
  text: string;
  low: number;
  middle: number;
  high: number;
}

/** Ratio intervals around 1: whoever crosses the line claims no difference. */
export function intervalChart(title: string, intervals: readonly Interval[]): string {
  const width = WIDTH;
  const row = 34;
  const top = 4;
  const height = top + intervals.length * row + 8;
  const low = Math.min(0.9, ...intervals.map((one) => one.low));
  const high = Math.max(1.1, ...intervals.map((one) => one.high));
  const x = (value: number) => (8 + ((value - low) / (high - low)) * (width - 16)).toFixed(1);
  const rows = intervals.map((one, index) => {
    const y = top + index * row;
    return (
      label(one.text, y + 10) +
      `<line x1="${x(one.low)}" x2="${x(one.high)}" y1="${y + 21}" y2="${y + 21}" stroke="${colour(0)}" stroke-width="4"/>` +
      `<circle cx="${x(one.middle)}" cy="${y + 21}" r="5" fill="${colour(1)}"/>`
    );
  });
  const one = `<line x1="${x(1)}" x2="${x(1)}" y1="${top}" y2="${height - 4}" stroke="#999" stroke-dasharray="4 3"/>`;
  return figure(title, width, height, [], one + rows.join(""));
}

const colour = (index: number) => PALETTE[index % PALETTE.length]!;

function figure(
  title: string,
  width: number,
  height: number,
  series: readonly string[],
  body: string,
): string {
  const legend = series
    .map((name, k) => `<span><i style="background:${colour(k)}"></i>${escapeXml(name)}</span> `)
    .join("");
  return (
    `<figure><figcaption><b>${escapeXml(title)}</b><br>${legend}</figcaption>` +
    `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeXml(title)}" xmlns="http://www.w3.org/2000/svg">${body}</svg></figure>`
  );
}
