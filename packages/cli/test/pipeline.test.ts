import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MINIATURE_SENTENCES, Random } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { k3, k3Process } from "./harness.ts";

const NIGHTLY = process.env["K3_NIGHTLY"] === "1";

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-pipeline-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

describe("k3 pipeline on the miniature", { timeout: 600_000 }, () => {
  it("goes from nothing to ` Paris.`, and leaves a report", async () => {
    const work = join(dir, "whole");
    const { code, stdout, stderr } = await k3(["pipeline", "--dir", work]);
    expect({ code, stderr: code ? stderr : "" }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toContain("The capital of France is Paris.\n");
    for (const stage of ["plan", "fetch", "verify", "pack", "run", "bench"])
      expect(stderr).toMatch(new RegExp(`^${stage} `, "m"));
    expect(await readFile(join(work, "bench/bench.html"), "utf8")).toContain("<svg");
  });

  it("says at once that it is finished when it is run again", async () => {
    const { code, stdout } = await k3(["pipeline", "--dir", join(dir, "whole"), "--json"]);
    expect(code).toBe(0);
    const result = JSON.parse(stdout.trim().split("\n").at(-1)!) as {
      command: string;
      stages: Record<string, any>;
    };
    expect(result.command).toBe("pipeline");
    expect(result.stages).toMatchObject({
      plan: { download_bytes: expect.any(Number), cost: null },
      fetch: { repo: "k3/miniature", revision: expect.stringMatching(/^[0-9a-f]{40}$/), verified: true },
      verify: { ok: true, level: "hashes", faults: [] },
      pack: { codec: "bf16", blocks: expect.any(Number), stored_bytes: expect.any(Number) },
      run: { text: " Paris.", stop_reason: "end", model: { layers: 9 }, trunk: { codec: "bf16" } },
      bench: { points: [{ runs: { length: 3 } }], ok: true },
    });
    const human = await k3(["pipeline", "--dir", join(dir, "whole")]);
    expect(human.stdout).toContain("Finished already: The capital of France is Paris.");
  });

  it("tells which stages are finished", async () => {
    const { result, code } = await k3(["pipeline", "--dir", join(dir, "whole"), "--status", "--json"]);
    expect([code, result()["next"], result()["finished"].length]).toEqual([0, null, 6]);
    expect((await k3(["pipeline", "--dir", join(dir, "none"), "--status"])).code).toBe(3);
  });

  it("is known to doctor, which names the command that goes on with it", async () => {
    const work = join(dir, "whole");
    const next = async (...flags: string[]) => {
      const { result } = await k3(["doctor", work, "--probe-seconds", "0.1", ...flags, "--json"]);
      return result() as { next_command: string; disks: { holds: string[]; needed_bytes: number }[] };
    };
    const finished = await next();
    expect(finished.disks).toMatchObject([{ holds: ["checkpoint", "trunk"], needed_bytes: 0 }]);
    expect(finished.next_command).toBe(
      `k3 run ${work}/model --trunk ${work}/trunk --prompt 'The capital of France is' --generate 8`,
    );
    const path = join(work, "pipeline.json");
    const text = await readFile(path, "utf8");
    const state = JSON.parse(text) as { stages: Record<string, unknown> };
    delete state.stages["bench"];
    const asked = { repo: "moonshotai/Kimi-K3", revision: "a5", memory: 16e9, prompt: "It's", generate: 3 };
    await writeFile(path, JSON.stringify({ ...state, ...asked }));
    expect((await next()).next_command).toBe(
      `k3 pipeline moonshotai/Kimi-K3 --revision a5 --dir ${work} --memory 16000000000 --prompt 'It'\\''s' --generate 3`,
    );
    await writeFile(path, text);
  });

  it("packs again when the trunk is gone, and answers another prompt without downloading", async () => {
    const work = join(dir, "whole");
    const known = MINIATURE_SENTENCES[1]!;
    await rm(join(work, "trunk"), { recursive: true });
    const { result } = await k3(["pipeline", "--dir", work, "--prompt", known.prompt, "--json"]);
    expect(result()["stages"]["run"]["text"]).toBe(known.continuation);
    expect(result()["stages"]["pack"]["resumed_blocks"]).toBe(0);
  });

  it("continues after kill -9 at any moment, with the same answer", async () => {
    const random = new Random(NIGHTLY ? Date.now() : 7);
    const work = join(dir, "killed");
    const kills = NIGHTLY ? 60 : 6;
    for (let i = 0; i < kills; i++)
      await k3Process(["pipeline", "--dir", work], { cwd: dir, killAfterMs: 300 + random.below(5000) });
    const { code, stdout, stderr } = await k3Process(["pipeline", "--dir", work], { cwd: dir });
    expect({ code, stderr: code ? stderr : "" }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toMatch(/The capital of France is Paris\./);
    const { result } = await k3(["verify", join(work, "model"), "--recheck", "--json"]);
    expect(result()).toMatchObject({ ok: true, level: "hashes", faults: [] });
  });

  it("stops on SIGINT with exit code 130 and says how to go on; a second process is refused with 7 meanwhile", async () => {
    const work = join(dir, "interrupted");
    let second: ReturnType<typeof k3Process> | undefined;
    const first = k3Process(["pipeline", "--dir", work], {
      cwd: dir,
      onStderr: (text, child) => {
        if (second !== undefined || !/^plan /m.test(text)) return;
        // It holds the directory, and keeps it while it stands still, however slow the second one is.
        child.kill("SIGSTOP");
        second = k3Process(["pipeline", "--dir", work, "--json"], { cwd: dir }).finally(() => {
          child.kill("SIGINT");
          child.kill("SIGCONT");
        });
      },
    });
    const { code, stderr } = await first;
    expect((await second!).result()).toMatchObject({ type: "error", code: "E_LOCKED", exit: 7 });
    expect(code).toBe(130);
    expect(stderr).toContain("the same command continues");
  });

  it("says of what it is from its first moment on, so that doctor knows how to go on", async () => {
    const work = join(dir, "begun");
    const killed = await k3Process(["pipeline", "--dir", work], {
      cwd: dir,
      onStderr: (text, child) => void (/making weights/.test(text) && child.kill("SIGKILL")),
    });
    expect(killed.code).not.toBe(0);
    const { result } = await k3(["pipeline", "--dir", work, "--status", "--json"]);
    expect(result()).toMatchObject({ finished: [], next: "plan" });
  });
});
