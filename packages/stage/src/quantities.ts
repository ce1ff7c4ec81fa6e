import { StageError } from "./errors.ts";

const DECIMAL: Record<string, number> = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, p: 1e15 };
const BINARY: Record<string, number> = { k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40, p: 2 ** 50 };

/**
 * A size in bytes: `16GB` is 16e9, `14GiB` is 14 x 2^30, `512M` is 512e6, a bare number is bytes. Fractions are
 * allowed with a unit. Throws E_USAGE.
 */
export function parseSize(text: string): number {
  const match = /^(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)$/i.exec(text.trim());
  const scale = match && (match[3] ? BINARY[match[2]!.toLowerCase()] : DECIMAL[match[2]!.toLowerCase()]);
  const bytes = match && scale ? Math.round(Number(match[1]) * scale) : Number.NaN;
  if (!Number.isSafeInteger(bytes) || (match && !match[2] && match[1]!.includes("."))) {
    throw new StageError("E_USAGE", `"${text}" is not a size`, {
      hint: "write 16GB, 14GiB, 512M or a number of bytes",
    });
  }
  return bytes;
}

/**
 * A rate in bytes per second: `50MB`, `240MB/s`; of bits (decimal) `1Gbit`, `1Gbit/s`, `1Gbps`. Throws E_USAGE, also
 * for `240Mb/s` and `240mb`, which some take for bytes and some for bits.
 */
export function parseRate(text: string): number {
  const bits = /^(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(?:[bB]its?(?:\/s|ps)?|bps)$/.exec(text.trim());
  const rate = bits ? (Number(bits[1]) * DECIMAL[bits[2]!.toLowerCase()]!) / 8 : parseSizeOfRate(text);
  if (!(rate > 0)) {
    throw new StageError("E_USAGE", `"${text}" is not a rate`, {
      hint: "write 50MB or 240MB/s for bytes, 1Gbit for bits",
    });
  }
  return rate;
}

function parseSizeOfRate(text: string): number {
  if (/[kmgtp]b(\/s)?$/i.test(text.trim()) && /b(\/s)?$/.test(text.trim())) return Number.NaN;
  try {
    return parseSize(text.trim().replace(/(\/s|ps)$/i, ""));
  } catch {
    return Number.NaN;
  }
}

/** Bytes for people, decimal units: `1.56 TB`, `17.5 MB`, `812 B`. */
export function formatBytes(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let value = Math.abs(bytes);
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${units[unit]}`;
}

/** Seconds for people: `14 ms`, `0.42 s`, `38 s`, `12 min 05 s`, `3 h 20 min`, `2 d 04 h`. */
export function formatSeconds(seconds: number): string {
  if (!Number.isFinite(seconds)) return "unknown";
  if (seconds > 0 && seconds < 0.0995) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  const whole = Math.round(seconds);
  const two = (n: number) => String(n).padStart(2, "0");
  if (whole < 100) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}
