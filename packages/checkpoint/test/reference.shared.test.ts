import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { endIdsOf } from "../src/end-ids.ts";
import { openCheckpoint } from "../src/open.ts";
import { checkStructure } from "../src/structure.ts";
import { temporaryDirectory } from "./tiny.ts";

const python = process.env["K3_PYTHON"];
const shared = process.env["K3_SHARED"];
const scripts = join(import.meta.dirname, "../../../tools/reference");
const because = (reason: string | false, title: string) => (reason ? `${title} (skipped: ${reason})` : title);
const noPython = !python && "K3_PYTHON is not set";

describe.skipIf(noPython)(because(noPython, "checkpoints of the reference scripts"), () => {
  test.each([
    ["13 layers in 4 shards", 13, 4, []],
    [
      "without shared experts, A_log as long as the heads",
      6,
      1,
      ["num_hidden_layers=6", "num_shared_experts=0", "kda_heads=16"],
    ],
  ])("%s", async (_, layers, shards, settings) => {
    const dir = await temporaryDirectory();
    const set = settings.flatMap((setting) => ["--set", setting]);
    execFileSync(python!, [join(scripts, "make_checkpoint.py"), dir, "--shards", String(shards), ...set]);
    const checkpoint = await openCheckpoint(dir);
    expect([checkpoint.layers, checkpoint.shards.length, checkpoint.experts.format]).toEqual([
      layers,
      shards,
      "mxfp4",
    ]);
    // Every tensor of the index that comes with it, no more and no less, in the file and place that the headers say.
    const index = JSON.parse(readFileSync(join(dir, "model.safetensors.index.json"), "utf8"));
    const located = [...checkpoint.dense, checkpoint.embed];
    expect(located.length + checkpoint.experts.offsets.length + checkpoint.opaque.tensors).toBe(
      Object.keys(index.weight_map).length,
    );
    for (const { name, shard, offset, bytes } of located) {
      const { file, dataStart } = checkpoint.shards[shard]!;
      expect(file).toBe(index.weight_map[name]);
      const header = JSON.parse(readFileSync(join(dir, file)).subarray(8, dataStart).toString());
      expect(header[name].data_offsets).toEqual([offset - dataStart, offset - dataStart + bytes]);
    }
    expect((await checkStructure(dir)).faults).toEqual([]);
    expect(await endIdsOf(dir)).toEqual([769, 770]);
  });
});

const noAnchor = noPython || (!shared && "K3_SHARED is not set");
describe.skipIf(noAnchor)(because(noAnchor, "the first-party miniature"), () => {
  test("is accepted: all tensors F32, plain experts, widths that are no multiple of 32", async () => {
    const dir = await temporaryDirectory();
    execFileSync(python!, [join(shared!, "reference/make_anchor.py"), dir]);
    expect((await checkStructure(dir)).faults).toEqual([]);
    const { experts, dense } = await openCheckpoint(dir);
    expect([experts.format, experts.layers.length, dense.length + 1]).toEqual(["F32", 92, 2460]);
  });
});

/** 1.3 GB of disk and half a minute of work, so only nightly, or with a twin that exists. */
const twin = process.env["K3_TWIN"];
const noTwin = !twin && (noPython || (!process.env["K3_NIGHTLY"] && "neither K3_TWIN nor K3_NIGHTLY is set"));
describe.skipIf(noTwin)(because(noTwin, "the full-size sparse twin"), () => {
  test("is indexed within 120 MB of resident memory and has no faults", { timeout: 600_000 }, async () => {
    const dir = twin ?? (await temporaryDirectory());
    if (!existsSync(join(dir, "config.json"))) execFileSync(python!, [join(scripts, "make_twin.py"), dir]);
    const script = `
      import { openCheckpoint } from ${JSON.stringify(join(import.meta.dirname, "../dist/index.js"))};
      const { dense, experts, opaque, shards } = await openCheckpoint(process.argv[1]);
      const tensors = dense.length + 1 + experts.offsets.length + opaque.tensors;
      console.log(JSON.stringify({ tensors, shards: shards.length, megabytes: process.resourceUsage().maxRSS / 1024 }));`;
    const found = JSON.parse(
      execFileSync(process.execPath, ["--input-type=module", "-e", script, dir], { encoding: "utf8" }),
    );
    expect(found).toMatchObject({ tensors: 497_220, shards: 96 });
    expect(found.megabytes).toBeLessThan(120);
    expect((await checkStructure(dir)).faults).toEqual([]);
  });
});
