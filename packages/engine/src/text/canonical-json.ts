import { StageError } from "@k3/stage";

const MAX_DEPTH = 256;

/**
 * Compact JSON with the keys sorted by code point at every level and non-ASCII characters kept: the form in which tools are
 * declared (k3-model 5.4). Undefined values are left out, as JSON.stringify does.
 * Throws E_USAGE for values that JSON does not have, cycles, and nesting beyond 256 levels.
 */
export function canonicalJson(value: unknown): string {
  return write(value, 0);
}

function write(value: unknown, depth: number): string {
  if (depth > MAX_DEPTH)
    throw new StageError("E_USAGE", `JSON nested deeper than ${MAX_DEPTH} levels, or in a cycle`);
  if (value === null || typeof value === "string" || typeof value === "boolean") return JSON.stringify(value);
  if (typeof value === "number" && Number.isFinite(value)) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => write(item ?? null, depth + 1)).join(",")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value)
      .filter(([, member]) => member !== undefined)
      .sort(([a], [b]) => compareCodePoints(a, b))
      .map(([key, member]) => `${JSON.stringify(key)}:${write(member, depth + 1)}`);
    return `{${members.join(",")}}`;
  }
  throw new StageError("E_USAGE", `${String(value)} (${typeof value}) has no JSON form`);
}

/** Order by code points; JavaScript's own string order is by UTF-16 units, which differs above U+FFFF. */
function compareCodePoints(a: string, b: string): number {
  const others = b[Symbol.iterator]();
  for (const character of a) {
    const other = others.next();
    if (other.done) return 1;
    if (character !== other.value) return character.codePointAt(0)! - other.value.codePointAt(0)!;
  }
  return others.next().done ? 0 : -1;
}
