// The unit in a systemd of its own: what is started again, what is not, and that the pipeline goes on after the machine was lost.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { K3 } from "./support/k3.ts";
import { Init, noInit, unitOf } from "./support/systemd.ts";
import { noTerraform, renderStartup } from "./support/terraform.ts";

const reason = noInit ?? noTerraform;

describe.skipIf(reason)(`k3-pipeline.service${reason ? ` (skipped: ${reason})` : ""}`, () => {
  let unit: string;
  let machine: Init | undefined;
  beforeAll(async () => {
    unit = unitOf(await renderStartup({}));
  });
  afterEach(async () => {
    await machine?.remove();
    machine = undefined;
  });

  /** A pipeline whose runs end with these codes, one after the other; "KILL" is a crash. */
  const ending = (...codes: (number | "KILL")[]) =>
    [
      "echo begun",
      `set -- ${codes.join(" ")}`,
      "shift $(($(grep -c '^begun$' /mnt/lab/journal) - 1))",
      "[[ $1 != KILL ]] || kill -KILL $$",
      "exit $1",
    ].join("\n");

  it.each([
    [0, "inactive", "is finished"],
    [130, "inactive", "was asked to stop"],
    [1, "failed", "has a defect"],
    [2, "failed", "was refused"],
    [3, "failed", "found wrong data"],
    [5, "failed", "lacks disk or memory"],
  ])(
    "is restarted after 6, 4, 7 and a crash, however often, not after %i: %s, it %s",
    async (code, state) => {
      machine = new Init(unit, ending(6, 4, 7, "KILL", 6, 6, 6, code));
      machine.boot();
      await machine.until(new RegExp(`^ended: \\S+ ${code}$`));
      expect(await machine.rest()).toBe(state);
      expect(machine.journal.filter((line) => line.startsWith("ended: "))).toEqual([
        "ended: exit-code 6",
        "ended: exit-code 4",
        "ended: exit-code 7",
        "ended: signal KILL",
        ...Array(3).fill("ended: exit-code 6"),
        `ended: ${state === "failed" ? "exit-code" : "success"} ${code}`,
      ]);
    },
  );

  it("is not started without the data disk, which would fill the boot disk", async () => {
    machine = new Init(unit, ending(0));
    machine.boot({ data: false });
    await machine.until(/^booted$/);
    expect(machine.journal).toEqual(["booted"]);
  });

  it("runs as k3, with no way to write but to the data disk and its own state", async () => {
    machine = new Init(
      unit,
      [
        "id --user --name; pwd; echo $HF_TOKEN_PATH",
        "for folder in /mnt/k3-data/k3 $HOME /usr/local /opt /etc; do touch $folder/x 2>/dev/null && echo may write $folder; done",
      ].join("\n"),
    );
    machine.boot();
    await machine.rest();
    expect(machine.journal.filter((line) => !/^(ended: |booted$)/.test(line))).toEqual([
      "k3",
      "/mnt/k3-data/k3",
      "/run/k3/hf-token",
      "may write /mnt/k3-data/k3",
      "may write /var/lib/k3",
    ]);
  });

  it("goes on with the real pipeline after the host was lost, and after a pre-emption, by itself", {
    timeout: 300_000,
  }, async ({ onTestFailed }) => {
    const k3 = "exec /opt/node/node /opt/k3/packages/cli/bin/k3.js pipeline --dir /mnt/k3-data/k3";
    machine = new Init(unit, k3);
    onTestFailed(() => console.log(machine?.journal.join("\n")));
    machine.boot();
    await machine.until(/^fetch: .*9 files/);
    await machine.lose();

    let from = machine.journal.length;
    machine.boot();
    await machine.until(/^verify +19 files/, from);
    await machine.powerOff();
    const stopped = machine.journal.slice(from);
    expect(stopped).toContain("ended: success 130");
    expect(stopped.join("\n")).not.toContain("miniature making weights");

    from = machine.journal.length;
    machine.boot();
    await machine.until(/^ended: success 0$/, from);
    const third = machine.journal.slice(from);
    expect(third.join("\n")).toMatch(/^run +" Paris\."/m);
    expect(third.join("\n")).not.toMatch(/^fetch +downloading/m);
    await machine.powerOff();

    from = machine.journal.length;
    machine.boot();
    await machine.until(/^ended: success 0$/, from);
    expect(machine.journal.slice(from).join("\n")).toContain("Finished already");

    // As the page's `k3 pipeline --status` does, by whoever has logged in.
    const status = [K3, "pipeline", "--status", "--dir", join(machine.folder, "data/k3"), "--json"];
    const { stdout } = spawnSync(process.execPath, status, { encoding: "utf8" });
    expect(JSON.parse(stdout)).toMatchObject({ type: "result", next: null });
  });
});
