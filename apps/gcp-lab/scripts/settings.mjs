// The lab's settings as Terraform will see them: defaults of variables.tf, changed by a tfvars file, changed by flags.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const LAB = fileURLToPath(new URL("..", import.meta.url));

/** @typedef {Record<string, string | number | boolean>} Settings */

/** What a person did wrong; the commands print it and end with its exit code, as k3 itself does. */
export class Refusal extends Error {
  /** @param {2 | 3} exit 2 for usage, 3 for data that is not what it should be @param {string} message */
  constructor(exit, message) {
    super(message);
    this.exit = exit;
  }
}

/** @param {string} text one scalar of HCL @returns {string | number | boolean | undefined} undefined for anything else */
function scalar(text) {
  if (text === "true" || text === "false") return text === "true";
  if (/^-?\d+(\.\d+)?$/.test(text)) return Number(text);
  const string = /^"([^"\\$]*)"$/.exec(text);
  return string?.[1];
}

/**
 * The scalar defaults of a formatted variables.tf.
 * @param {string} text
 * @returns {Settings}
 */
export function readDefaults(text) {
  /** @type {Settings} */
  const settings = {};
  for (const [, name, body] of text.matchAll(/^variable "(\w+)" \{\n([\s\S]*?)^\}/gm)) {
    const value = scalar(/^ {2}default\s*= (.*)$/m.exec(body ?? "")?.[1] ?? "");
    if (name && value !== undefined) settings[name] = value;
  }
  return settings;
}

/**
 * The scalar lines of a tfvars file.
 * @param {string} text
 * @returns {Settings}
 */
export function readTfvars(text) {
  /** @type {Settings} */
  const settings = {};
  for (const line of text.split("\n")) {
    const match = /^\s*(\w+)\s*=\s*(".*?"|[^#\s]+)\s*(?:#.*)?$/.exec(line);
    const value = match && scalar(match[2] ?? "");
    if (match?.[1] && value !== undefined && value !== null) settings[match[1]] = value;
  }
  return settings;
}

/**
 * Defaults, then the tfvars file, then flags such as `--machine-type n2-standard-8` or `--spot`.
 * @param {Record<string, string | boolean | undefined>} flags
 * @returns {Settings}
 */
export function settingsFrom(flags) {
  const defaults = readDefaults(readFileSync(join(LAB, "variables.tf"), "utf8"));
  const tfvars = typeof flags["tfvars"] === "string" ? readTfvars(readText(flags["tfvars"])) : {};
  const settings = { ...defaults, ...tfvars };
  for (const [flag, value] of Object.entries(flags)) {
    const name = flag.replaceAll("-", "_");
    if (value === undefined || !(name in defaults)) continue;
    const kind = typeof defaults[name];
    const parsed = kind === "string" ? String(value) : scalar(String(value));
    if (typeof parsed !== kind) throw new Refusal(2, `--${flag} ${value}: a ${kind} is needed`);
    settings[name] = /** @type {string | number | boolean} */ (parsed);
  }
  return settings;
}

/** @param {string} path */
export function readText(path) {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new Refusal(2, `${path} cannot be read: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {string} path @returns {unknown} */
export function readJson(path) {
  const text = readText(path);
  try {
    return JSON.parse(text);
  } catch {
    throw new Refusal(3, `${path} is not JSON`);
  }
}

/**
 * Runs a command's main function and turns a Refusal into its message and exit code.
 * @param {() => number} main
 */
export function runMain(main) {
  try {
    process.exitCode = main();
  } catch (error) {
    if (error instanceof Refusal) {
      process.stderr.write(`${error.message}\n`);
      process.exitCode = error.exit;
    } else if (
      error instanceof TypeError &&
      "code" in error &&
      String(error.code).startsWith("ERR_PARSE_ARGS")
    ) {
      process.stderr.write(`${error.message}\n`);
      process.exitCode = 2;
    } else throw error;
  }
}
