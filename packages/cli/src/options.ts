import { parseRate, parseSize, StageError } from "@k3/stage";
import type { Options } from "yargs";

/** Option builders that refuse a wrong value before anything is opened: yargs itself would pass NaN and lists on. */

function once<T>(name: string, parse: (text: string) => T) {
  return (value: unknown): T | undefined => {
    if (value === undefined) return undefined;
    if (Array.isArray(value)) throw new StageError("E_USAGE", `--${name} is given more than once`);
    return parseWith(name, parse, value);
  };
}

/** yargs keeps only the message of what is thrown here, so the hint goes into it. */
function parseWith<T>(name: string, parse: (text: string) => T, value: unknown): T {
  try {
    return parse(String(value));
  } catch (error) {
    if (!(error instanceof StageError)) throw error;
    throw new StageError("E_USAGE", `--${name}: ${error.message}${error.hint ? `: ${error.hint}` : ""}`);
  }
}

function each<T>(name: string, parse: (text: string) => T) {
  return (value: unknown): T[] | undefined =>
    value === undefined
      ? undefined
      : (Array.isArray(value) ? value : [value]).map((item) => parseWith(name, parse, item));
}

export function text(name: string, describe: string) {
  return {
    type: "string",
    requiresArg: true,
    describe,
    coerce: once(name, (value) => value),
  } as const satisfies Options;
}

export function texts(name: string, describe: string) {
  return {
    type: "string",
    array: true,
    nargs: 1,
    describe,
    coerce: each(name, (value) => value),
  } as const satisfies Options;
}

export function rate(name: string, describe: string) {
  return {
    type: "string",
    requiresArg: true,
    describe,
    coerce: once(name, parseRate),
  } as const satisfies Options;
}

/** `auto` or a size. */
export function memory(describe: string) {
  const parse = once("memory", (value): number | "auto" => (value === "auto" ? value : parseSize(value)));
  return {
    type: "string",
    requiresArg: true,
    default: "auto",
    describe,
    coerce: parse,
  } as const satisfies Options;
}

function parseNumber(value: string, { min, max, whole }: Range & { whole: boolean }): number {
  const number = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value) ? Number(value) : Number.NaN;
  const fits = number >= (min ?? Number.NEGATIVE_INFINITY) && number <= (max ?? Number.POSITIVE_INFINITY);
  if (!fits || (whole && !Number.isSafeInteger(number))) {
    const limits = [
      min === undefined ? "" : `at least ${min}`,
      max === undefined ? "" : `at most ${max}`,
    ].filter(Boolean);
    throw new StageError(
      "E_USAGE",
      `${value} is not a ${whole ? "whole " : ""}number${limits.length ? ` of ${limits.join(" and ")}` : ""}`,
    );
  }
  return number;
}

interface Range {
  min?: number;
  max?: number;
}

export function whole(name: string, describe: string, range: Range = {}) {
  const parse = once(name, (value) => parseNumber(value, { ...range, whole: true }));
  return { type: "string", requiresArg: true, describe, coerce: parse } as const satisfies Options;
}

export function wholes(name: string, describe: string, range: Range = {}) {
  const parse = each(name, (value) => parseNumber(value, { ...range, whole: true }));
  return { type: "string", array: true, nargs: 1, describe, coerce: parse } as const satisfies Options;
}

export function sizes(name: string, describe: string) {
  return {
    type: "string",
    array: true,
    nargs: 1,
    describe,
    coerce: each(name, parseSize),
  } as const satisfies Options;
}

export function real(name: string, describe: string, range: Range = {}) {
  const parse = once(name, (value) => parseNumber(value, { ...range, whole: false }));
  return { type: "string", requiresArg: true, describe, coerce: parse } as const satisfies Options;
}

export function flag(describe: string) {
  return { type: "boolean", describe } as const satisfies Options;
}

/** `1008,10484,318`: token ids, each a whole number, nothing left out. */
export function idList(name: string, describe: string) {
  const parse = once(name, (value) =>
    value.split(",").map((part) => {
      if (!/^\d{1,15}$/.test(part.trim())) {
        throw new StageError("E_USAGE", `"${part}" is not a token id`, {
          hint: "write ids like 1008,10484,318",
        });
      }
      return Number(part);
    }),
  );
  return { type: "string", requiresArg: true, describe, coerce: parse } as const satisfies Options;
}
