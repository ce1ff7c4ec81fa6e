/**
 * Reads fields of an untrusted JSON object and collects what is wrong instead of stopping at the first fault. A getter
 * gives NaN, false or [] for a faulty field: whoever uses the values must look at `problems` first.
 */
export class FieldReader {
  readonly problems: string[];
  readonly #object: Record<string, unknown>;
  readonly #at: string;

  constructor(object: Record<string, unknown>, at: string, problems: string[]) {
    this.#object = object;
    this.#at = at;
    this.problems = problems;
  }

  has(key: string): boolean {
    return Object.hasOwn(this.#object, key) && this.#object[key] !== null;
  }

  keys(): string[] {
    return Object.keys(this.#object);
  }

  raw(key: string): unknown {
    return Object.hasOwn(this.#object, key) ? this.#object[key] : undefined;
  }

  fault(key: string, expected: string): void {
    const value = this.raw(key);
    this.problems.push(
      value === undefined
        ? `${this.#at}${key} is missing: ${expected} is needed`
        : `${this.#at}${key} is ${shown(value)}: it must be ${expected}`,
    );
  }

  integer(key: string, least: number, most: number): number {
    const value = this.raw(key);
    if (typeof value === "number" && Number.isInteger(value) && value >= least && value <= most) return value;
    this.fault(key, `a whole number from ${least} to ${most}`);
    return Number.NaN;
  }

  /** A finite number for which `holds`; `expected` says so in words. */
  real(key: string, holds: (value: number) => boolean, expected: string): number {
    const value = this.raw(key);
    if (typeof value === "number" && Number.isFinite(value) && holds(value)) return value;
    this.fault(key, expected);
    return Number.NaN;
  }

  boolean(key: string): boolean {
    const value = this.raw(key);
    if (typeof value === "boolean") return value;
    this.fault(key, "true or false");
    return false;
  }

  integers(key: string, least: number, most: number): number[] {
    const value = this.raw(key);
    const fits = (n: unknown) => typeof n === "number" && Number.isInteger(n) && n >= least && n <= most;
    if (Array.isArray(value) && value.every(fits)) return value;
    this.fault(key, `a list of whole numbers from ${least} to ${most}`);
    return [];
  }

  /** A nested object to read from, or undefined when it is missing or something else. */
  object(key: string): FieldReader | undefined {
    const value = this.raw(key);
    if (isObject(value)) return new FieldReader(value, `${this.#at}${key}.`, this.problems);
    this.fault(key, "an object");
    return undefined;
  }

  /** Refuses a field that is there (and not null) with a value that would mean another model than we compute. */
  refuseUnless(key: string, holds: (value: unknown) => boolean, expected: string): void {
    if (this.has(key) && !holds(this.raw(key))) this.fault(key, expected);
  }
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value in an error message: short, whatever it is. */
function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}
