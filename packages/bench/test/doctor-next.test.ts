import { once } from "node:events";
import { cp, mkdir, open, readdir, rename, rm, stat, truncate, utimes, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { basename, join, relative } from "node:path";
import { fileIdentity, type Receipt, writeReceipt, writeSnapshot } from "@k3/stage";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { doctor } from "../src/index.ts";
import { usualTrunkDirectory } from "../src/places.ts";
import { packedModel, quick } from "./packed-model.ts";

let { dir, model, trunk } = {} as Awaited<ReturnType<typeof packedModel>>;
beforeAll(async () => {
  ({ dir, model, trunk } = await packedModel());
}, 300_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const REVISION = "0123456789abcdef0123456789abcdef01234567";
const HASH = "0".repeat(64);

/** What a download leaves first: the list of what is to come. */
async function listFiles(place: string, files: { path: string; size: number }[]): Promise<void> {
  await mkdir(join(place, ".cache/k3"), { recursive: true });
  await writeSnapshot(place, {
    format: "k3-snapshot",
    version: 1,
    endpoint: "http://127.0.0.1:9",
    repo: "k3/other",
    revision: REVISION,
    files: files.map((file) => ({ ...file, sha256: HASH })),
    selected: null,
  });
}

describe("the next command", () => {
  it("of a download that has just begun is to go on with it, and only its own bytes are asked for", async () => {
    const begun = join(dir, "begun");
    await listFiles(begun, [{ path: "model-00001-of-000001.safetensors", size: 3e6 }]);
    const result = await doctor({ dir: begun, ...quick });
    expect(result.disks[0]!.needed_bytes).toBe(3e6 + Math.round(3e6 * 0.67));
    // Nothing can be downloaded from a Hub that does not answer.
    expect(result).toMatchObject({ ok: false, exit: 5, next_command: `k3 doctor ${begun}` });
    const hub = createServer((_, answer) => answer.end()).listen(0, "127.0.0.1");
    await once(hub, "listening");
    const { port } = hub.address() as AddressInfo;
    const online = await doctor({ dir: begun, probeSeconds: 0.3, endpoint: `http://127.0.0.1:${port}` });
    hub.close();
    expect(online.next_command).toBe(`k3 fetch k3/other --revision ${REVISION} --dir ${begun}`);
  });

  it("is to verify where a file was touched since, and to repair what was then found damaged", async () => {
    const verified = join(dir, "verified");
    await cp(model, verified, { recursive: true });
    const names = await readdir(verified);
    const files = [];
    for (const path of names) files.push({ path, size: (await stat(join(verified, path))).size });
    await listFiles(verified, files);
    const next = async () => (await doctor({ dir: verified, trunkDir: trunk, ...quick })).next_command;
    expect(await next()).toBe(`k3 verify ${verified}`);
    const read = [];
    for (const path of names) {
      const identity = fileIdentity(await stat(join(verified, path), { bigint: true }));
      read.push({ path, identity, algorithm: "sha256", hash: HASH, how: "read", crc32: [0] });
    }
    const receipt = {
      format: "k3-receipt",
      version: 1,
      repo: "k3/other",
      revision: REVISION,
      chunkBytes: 2 ** 26,
    };
    const proof = { ...receipt, files: read, damaged: [] } as unknown as Receipt;
    await writeReceipt(verified, proof);
    expect(await next()).toMatch(/^k3 run /);
    await writeReceipt(verified, { ...proof, damaged: [{ path: names[0]!, chunks: [0] }] });
    expect(await next()).toBe(`k3 fetch k3/other --revision ${REVISION} --dir ${verified} --repair`);
    await writeReceipt(verified, proof);
    await utimes(join(verified, names[0]!), 1, 1);
    expect(await next()).toBe(`k3 verify ${verified}`);
  });

  it("is none to run a damaged trunk: what is wrong with it is said, and what to do", async () => {
    const damaged = join(dir, "damaged");
    await cp(trunk, damaged, { recursive: true });
    const data = (await readdir(damaged)).find((name) => name.endsWith(".bin"))!;
    await truncate(join(damaged, data), 1000);
    const errors = async () => {
      const result = await doctor({ dir: model, trunkDir: damaged, ...quick });
      expect(result).toMatchObject({ ok: false, exit: 5 });
      return result.findings.filter(({ level }) => level === "error");
    };
    const hint = `remove ${damaged}/trunk.json and pack again`;
    const whole = (await stat(join(trunk, data))).size;
    const short = `${damaged}/${data} has 1000 bytes where ${damaged}/trunk.json says ${whole}`;
    expect(await errors()).toEqual([{ level: "error", message: short, hint }]);
    await writeFile(join(damaged, "trunk.json"), "garbage");
    const garbage = `${damaged}/trunk.json is not a trunk manifest`;
    expect(await errors()).toEqual([{ level: "error", message: garbage, hint }]);
  });

  it("is refused for a file in the place of a directory, of the checkpoint or of the trunk", async () => {
    const file = join(model, "config.json");
    for (const given of [{ dir: file }, { dir: model, trunkDir: file }])
      await expect(doctor({ ...given, ...quick })).rejects.toMatchObject({
        code: "E_USAGE",
        message: `${file} is a file`,
      });
  });

  it("warns of a checkpoint that no manifest belongs to", async () => {
    const { findings } = await doctor({ dir: model, trunkDir: trunk, ...quick });
    const hint = `k3 verify ${model} --repo NAME --revision COMMIT does`;
    expect(findings).toContainEqual({
      level: "warn",
      hint,
      message: expect.stringMatching(/has no manifest/),
    });
  });
});

describe("where the trunk is", () => {
  it("is beside the checkpoint, written as the checkpoint's directory was given", async () => {
    expect(await usualTrunkDirectory(join(dir, "none"))).toBe(join(dir, "none-trunk"));
    expect(await usualTrunkDirectory(`${join(dir, "none")}/`)).toBe(join(dir, "none-trunk"));
    const given = relative(".", join(dir, "none"));
    expect(await usualTrunkDirectory(given)).toBe(`${given}-trunk`);
    expect(await usualTrunkDirectory(".")).toBe(`../${basename(process.cwd())}-trunk`);
  });

  it("is where one is found: nothing is then needed for it, and the next command runs it", async () => {
    const packed = join(dir, "model-trunk");
    await rename(trunk, packed);
    try {
      const { disks, next_command } = await doctor({ dir: model, ...quick });
      expect(disks).toMatchObject([{ holds: ["checkpoint", "trunk"], needed_bytes: 0 }]);
      expect(next_command).toBe(
        `k3 run ${model} --trunk ${packed} --prompt 'The capital of France is' --generate 8`,
      );
    } finally {
      await rename(packed, trunk);
    }
  });

  it("counts of an unfinished trunk what it takes of the disk, not its holes", async () => {
    const unfinished = join(dir, "unfinished");
    await mkdir(unfinished);
    const part = await open(join(unfinished, "trunk.part"), "w");
    await part.write(Buffer.alloc(1 << 20, 1));
    await part.sync();
    await part.truncate(1e9);
    await part.close();
    const needed = async (trunkDir: string) =>
      (await doctor({ dir: model, trunkDir, ...quick })).disks[0]!.needed_bytes;
    expect((await needed(join(dir, "nothing"))) - (await needed(unfinished))).toBe(1 << 20);
  });
});
