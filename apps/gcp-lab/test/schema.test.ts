// The provider cannot be had here, so `terraform validate` is replaced by its own argument names and by the references' other ends.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import google from "./fixtures/google-6.50.0.json" with { type: "json" };
import { type Hcl, LAB, PLAN, parseFolder } from "./support/terraform.ts";

interface Block {
  required: string[];
  optional: string[];
}
interface Resource {
  blocks: Record<string, Block>;
  outputs: string[];
}
const resources = google.resources as Record<string, Resource>;
const META = ["count", "for_each", "depends_on", "lifecycle", "provider", "dynamic"];
let root: Hcl;

beforeAll(async () => {
  root = await parseFolder(LAB);
});

function* configured(): Generator<[type: string, name: string, body: Hcl]> {
  for (const [type, named] of Object.entries<Hcl>(root.resource)) {
    for (const [name, [body]] of Object.entries<Hcl>(named)) yield [type, name, body];
  }
  for (const [type, named] of Object.entries<Hcl>(root.data)) {
    for (const [name, [body]] of Object.entries<Hcl>(named)) yield [`data.${type}`, name, body];
  }
}

/** Complaints about a block: unknown arguments, missing ones, unknown nested blocks. */
function faults(resource: Resource, path: string, body: Hcl): string[] {
  const known = resource.blocks[path];
  if (!known) return [`block ${path} is not in the recorded schema`];
  const nested = Object.entries<Hcl>(body.dynamic ?? {}).map(
    ([name, [block]]) => [name, block.content] as const,
  );
  const names = [
    ...Object.keys(body).filter((name) => !META.includes(name)),
    ...nested.map(([name]) => name),
  ];
  const found = names
    .filter((name) => !known.required.includes(name) && !known.optional.includes(name))
    .map((name) => `${path}.${name} does not exist`);
  found.push(
    ...known.required.filter((name) => !names.includes(name)).map((name) => `${path}.${name} is missing`),
  );
  const blocks = [
    ...Object.entries<Hcl>(body).filter(([name, value]) => !META.includes(name) && isBlocks(value)),
    ...nested,
  ];
  for (const [name, list] of blocks) {
    for (const block of list) found.push(...faults(resource, path ? `${path}.${name}` : name, block));
  }
  return found;
}

const isBlocks = (value: Hcl): boolean =>
  Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "object");

describe("hashicorp/google", () => {
  it("is the version whose names are recorded", () => {
    expect(google.provider).toBe(root.terraform[0].required_providers[0].google.version);
  });

  it("has every argument that is set, and every argument that it requires is set", () => {
    for (const [type, name, body] of configured()) {
      expect(resources, type).toHaveProperty([type]);
      expect(faults(resources[type]!, "", body), `${type}.${name}`).toEqual([]);
    }
  });

  it("would be refused with a misspelt or a missing argument", () => {
    const disk = resources["google_compute_disk"]!;
    expect(faults(disk, "", { nmae: "x" })).toEqual([".nmae does not exist", ".name is missing"]);
  });
});

/** Every `a.b.c` in a text of HCL outside of comments and plain strings. */
function references(text: string): string[] {
  const code = text
    .replace(/^\s*#.*$/gm, "")
    .replace(/"(?:[^"\\]|\\.)*"/g, (string) =>
      [...string.matchAll(/\$\{([^}]*)\}/g)].map((m) => m[1]).join(" "),
    );
  return [...code.matchAll(/(?<![.\w])[a-z][a-z0-9_]*(?:\[\d+\]|\.[a-z0-9_]+)+/g)].map((match) => match[0]);
}

async function textOf(folder: string): Promise<string> {
  const files = (await readdir(folder)).filter((file) => file.endsWith(".tf")).sort();
  return (await Promise.all(files.map((file) => readFile(join(folder, file), "utf8")))).join("\n");
}

describe("references", () => {
  it("of the root lead to declared variables, outputs of the plan, and attributes of declared resources", async () => {
    const plan = await parseFolder(PLAN);
    const seen = new Set<string>();
    for (const reference of references(await textOf(LAB))) {
      const parts = reference.replace(/\[\d+\]/g, "").split(".");
      if (parts[0] === "var") {
        expect(Object.keys(root.variable), reference).toContain(parts[1]);
        seen.add(parts[1]!);
      } else if (parts[0] === "module") {
        expect(parts[1], reference).toBe("plan");
        expect(Object.keys(plan.output), reference).toContain(parts[2]);
      } else if (parts[0]?.startsWith("google_") || parts[0] === "data") {
        const [type, name, attribute] =
          parts[0] === "data" ? [`data.${parts[1]}`, parts[2], parts[3]] : [parts[0]!, parts[1], parts[2]];
        const declared = parts[0] === "data" ? root.data[parts[1]!] : root.resource[type];
        expect(Object.keys(declared ?? {}), reference).toContain(name);
        if (attribute === undefined) continue;
        const { blocks, outputs } = resources[type]!;
        expect([...blocks[""]!.required, ...blocks[""]!.optional, ...outputs, "id"], reference).toContain(
          attribute,
        );
      }
    }
    expect([...seen].sort(), "no variable is declared in vain").toEqual(Object.keys(root.variable).sort());
  });

  it("the root passes every variable of the plan and no other", async () => {
    const plan = await parseFolder(PLAN);
    const passed = Object.keys(root.module.plan[0]).filter((name) => name !== "source");
    expect(passed.sort()).toEqual(Object.keys(plan.variable).sort());
  });

  it("names and commands that the root takes from the plan exist there", async () => {
    const names = Object.keys(
      (await parseFolder(PLAN)).locals.find((block: Hcl) => block.names)?.names ?? {},
    );
    const commands = Object.keys(
      (await parseFolder(PLAN)).locals.find((block: Hcl) => block.commands)?.commands ?? {},
    );
    expect(names.length).toBeGreaterThan(5);
    for (const reference of references(await textOf(LAB))) {
      const name = /^module\.plan\.names\.(\w+)/.exec(reference);
      if (name) expect(names, reference).toContain(name[1]);
      const command = /^module\.plan\.commands\.(\w+)/.exec(reference);
      if (command) expect(commands, reference).toContain(command[1]);
    }
  });
});
