import { readFile, stat } from "node:fs/promises";
import type { ToolDeclaration } from "@k3/engine";
import { StageError } from "@k3/stage";

const MAX_BYTES = 4e6;

/**
 * Tool declarations of a JSON file: a list of objects, or `{"tools": [...]}`. Throws E_USAGE when it holds anything else, E_DATA when
 * there is no such file.
 */
export async function readTools(path: string): Promise<ToolDeclaration[]> {
  const { size } = await stat(path);
  if (size > MAX_BYTES) throw refused(path, `has ${size} bytes; ${MAX_BYTES} are the most`);
  let value: unknown;
  try {
    value = JSON.parse(await readFile(path, "utf8"));
  } catch (error) {
    if (error instanceof SyntaxError) throw refused(path, `is not JSON: ${error.message}`);
    throw error;
  }
  const list = isObject(value) && "tools" in value ? value["tools"] : value;
  if (!Array.isArray(list)) throw refused(path, "holds no list of tools");
  const wrong = list.findIndex((item) => !isObject(item));
  if (wrong >= 0) throw refused(path, `has something that is no tool in place ${wrong + 1}`);
  return list as ToolDeclaration[];
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const refused = (path: string, what: string): StageError =>
  new StageError("E_USAGE", `${path} ${what}`, {
    hint: 'write [{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}]',
  });
